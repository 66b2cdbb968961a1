//! Data that only one of the store's three replicas has: parts of failed writes, and proposals of
//! failed conditional writes. A quorum read asks two of the three. If it sees such a part, it
//! repairs the others, so that every later read sees it too; otherwise the part stays, and another
//! read may see it. The next operation on a lease completes a proposal, or nothing ever does.

use waybill_engine::{OperationId, PartitionId};
use waybill_state::{DueBucket, Lease, LeaseKey};

use crate::run::Run;
use crate::schedulers::writes::Piece;
use crate::seen::Sight;

/// The percentage of parts of failed writes that one replica has.
const KEPT: u64 = 50;
/// The percentage of reads that ask the replica that differs.
const SEEN: u64 = 67;

/// The subject of a read.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    Row(OperationId),
    /// A bucket of the deadline index.
    Entries(PartitionId, DueBucket),
    /// The attention table of an index shard.
    Attention(PartitionId),
}

impl Asked {
    fn covers(self, piece: &Piece) -> bool {
        match (self, piece) {
            (Self::Row(id), Piece::Row(row, _)) => row.id == id,
            (Self::Entries(of, bucket), Piece::Due(shard, entry)) => {
                (of, bucket) == (*shard, DueBucket::of(entry.due))
            }
            (Self::Attention(of), Piece::Attention(shard, _)) => of == *shard,
            _ => false,
        }
    }
}

/// The data that one replica has and the others lack.
#[derive(Debug, Default)]
pub struct Divergence {
    pieces: Vec<Piece>,
    /// Proposals of leases whose condition held.
    proposals: Vec<Lease>,
}

impl Run {
    /// The rest of a write has failed: one replica may have parts of it. Rows are sent once all
    /// entries are durable, as the driver does.
    pub fn write_fails(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        if !self.plan.replicas_differ {
            return;
        }
        let is_row = |piece: &Piece| matches!(piece, Piece::Row(..));
        let (rows, entries): (Vec<_>, Vec<_>) = pieces.into_iter().partition(is_row);
        let has_sent_rows = entries.is_empty() || self.replica_rng.chance(50);
        let kept = match has_sent_rows {
            true => {
                for entry in entries {
                    self.land_piece(entry);
                }
                rows
            }
            false => entries,
        };
        for piece in kept {
            if self.replica_rng.chance(KEPT) {
                self.store.divergence.pieces.push(piece);
            }
        }
    }

    /// A quorum is read. It may see the parts that one replica has, and then repairs the others.
    pub fn read_quorum(&mut self, asked: Asked) {
        let mut at = 0;
        while let Some(piece) = self.store.divergence.pieces.get(at) {
            if !asked.covers(piece) {
                at += 1;
                continue;
            }
            if !self.replica_rng.chance(SEEN) {
                self.seen.count(Sight::PartsNotRead);
                at += 1;
                continue;
            }
            let piece = self.store.divergence.pieces.remove(at);
            self.seen.count(Sight::PartsRepaired);
            self.note_all(|| format!("a read repairs {piece:?}"));
            self.land_piece(piece);
        }
    }

    /// A conditional write of a lease has failed, and its condition held: it may have been
    /// proposed.
    pub fn proposal_fails(&mut self, lease: &Lease) {
        if self.plan.replicas_differ && self.replica_rng.chance(KEPT) {
            self.store.divergence.proposals.push(lease.clone());
        }
    }

    /// A read or conditional write of a lease begins. It completes a proposal if it asks the
    /// replica that has it; otherwise nothing ever will.
    pub fn complete_proposal(&mut self, key: LeaseKey) {
        let proposals = &mut self.store.divergence.proposals;
        let Some(at) = proposals.iter().position(|lease| lease.key == key) else {
            return;
        };
        let lease = proposals.remove(at);
        if !self.replica_rng.chance(SEEN) {
            return self.seen.count(Sight::ProposalsDropped);
        }
        self.seen.count(Sight::ProposalsCompleted);
        self.note_all(|| format!("a proposal is completed: {lease:?}"));
        self.put_lease(&lease);
    }
}
