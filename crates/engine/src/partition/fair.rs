//! Fair queueing of the requests that wait for admission.
//!
//! What must hold: **no tenant waits for another's backlog.** While requests of both priorities
//! wait, `weight` high-priority ones are admitted for each normal one. Within a priority the
//! tenants are admitted in rotation, one request each. Requests of one tenant in one priority keep
//! their order, so that a cancel stays after its create. A cancel in another tenant's name, which
//! only a direct writer to the topic can send, waits in the queue of its create. Otherwise it could
//! be admitted first and keep the create out.
//!
//! The queue is fair among the requests that it holds. Requests further back in the topic wait for
//! all before them, so the scheduler's read-ahead limits how large a backlog can be passed.
//!
//! Deliberately absent: a limit on waiting requests. The consumer limits them by
//! [`FairQueue::waiting`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::id::{Offset, OperationId};
use crate::partition::figures::Waiting;
use crate::priority::{ByPriority, Priority};
use crate::record::OperationRequest;
use crate::time::Timestamp;

/// A request that waits for admission.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) priority: Priority,
    pub(super) offset: Offset,
    pub(super) bytes: usize,
    pub(super) rerouted: bool,
    pub(super) request: OperationRequest,
    /// Since when it has waited.
    pub(super) since: Timestamp,
}

/// All requests that wait for admission.
#[derive(Debug)]
pub(super) struct FairQueue {
    priorities: ByPriority<TenantQueues>,
    /// How many high-priority requests are admitted for each normal one.
    weight: u32,
    /// How many high-priority requests were admitted since the last normal one.
    high_in_a_row: u32,
}

/// The requests of one priority.
#[derive(Debug, Default)]
struct TenantQueues {
    /// The only request. In the usual case that no other waits, it needs no queue.
    lone: Option<Queued>,
    /// The queue of each tenant that has requests, in the order of their offsets.
    tenants: HashMap<Arc<str>, VecDeque<Queued>>,
    /// The tenants of the creates in these queues.
    creates: BTreeMap<(OperationId, Offset), Arc<str>>,
    /// The tenants in rotation: the first one is next.
    order: VecDeque<Arc<str>>,
    waiting: Waiting,
}

impl FairQueue {
    pub(super) fn new(weight: u32) -> Self {
        Self {
            priorities: ByPriority::default(),
            weight: weight.max(1),
            high_in_a_row: 0,
        }
    }

    /// Adds a request to the end of its tenant's queue.
    pub(super) fn push(&mut self, queued: Queued) {
        self.priorities[queued.priority].push(queued);
    }

    /// Takes out the next request to admit.
    pub(super) fn pop(&mut self) -> Option<Queued> {
        let priority = match (
            self.priorities.normal.is_empty(),
            self.priorities.high.is_empty(),
        ) {
            (true, true) => return None,
            (false, true) => Priority::Normal,
            (true, false) => Priority::High,
            (false, false) if self.high_in_a_row < self.weight => Priority::High,
            (false, false) => Priority::Normal,
        };
        self.high_in_a_row = match priority {
            Priority::Normal => 0,
            Priority::High => self.high_in_a_row.saturating_add(1),
        };
        self.priorities[priority].pop()
    }

    /// How many requests of a priority wait.
    pub(super) fn waiting(&self, priority: Priority) -> Waiting {
        self.priorities[priority].waiting
    }

    /// The request at an offset. Visits all tenants.
    pub(super) fn find(&self, priority: Priority, offset: Offset) -> Option<&Queued> {
        let TenantQueues { lone, tenants, .. } = &self.priorities[priority];
        let lone = lone.as_ref().filter(|queued| queued.offset == offset);
        lone.or_else(|| {
            tenants.values().find_map(|queue| {
                let at = queue.binary_search_by_key(&offset, |queued| queued.offset);
                queue.get(at.ok()?)
            })
        })
    }
}

impl TenantQueues {
    fn is_empty(&self) -> bool {
        self.waiting.requests == 0
    }

    fn push(&mut self, queued: Queued) {
        let is_lone = self.is_empty();
        self.waiting.requests += 1;
        self.waiting.bytes += queued.bytes;
        if is_lone {
            self.lone = Some(queued);
            return;
        }
        if let Some(first) = self.lone.take() {
            self.enqueue(first);
        }
        self.enqueue(queued);
    }

    /// Adds a request to the queue of its tenant, or of its create's tenant.
    fn enqueue(&mut self, queued: Queued) {
        let operation = queued.request.operation();
        let tenant = match &queued.request {
            OperationRequest::Amend(_) => self.creator_of(operation),
            OperationRequest::Create(_) => None,
        };
        let tenant = tenant.unwrap_or_else(|| self.name_of(queued.request.tenant()));
        if let OperationRequest::Create(_) = &queued.request {
            let at = (operation, queued.offset);
            self.creates.insert(at, tenant.clone());
        }
        if let Some(queue) = self.tenants.get_mut(&tenant) {
            queue.push_back(queued);
        } else {
            self.order.push_back(tenant.clone());
            self.tenants.insert(tenant, VecDeque::from([queued]));
        }
    }

    /// The tenant's name, shared among its requests.
    fn name_of(&self, tenant: &str) -> Arc<str> {
        match self.tenants.get_key_value(tenant) {
            Some((name, _)) => name.clone(),
            None => tenant.into(),
        }
    }

    /// The tenant whose queue holds the latest create of an operation.
    fn creator_of(&self, operation: OperationId) -> Option<Arc<str>> {
        let all = (operation, Offset(i64::MIN))..=(operation, Offset(i64::MAX));
        let (_, tenant) = self.creates.range(all).next_back()?;
        Some(tenant.clone())
    }

    fn pop(&mut self) -> Option<Queued> {
        if let Some(lone) = self.lone.take() {
            self.taken(&lone);
            return Some(lone);
        }
        let tenant = self.order.pop_front()?;
        let queue = self.tenants.get_mut(&tenant)?;
        let queued = queue.pop_front()?;
        if queue.is_empty() {
            self.tenants.remove(&tenant);
        } else {
            self.order.push_back(tenant);
        }
        if let OperationRequest::Create(create) = &queued.request {
            self.creates.remove(&(create.operation, queued.offset));
        }
        self.taken(&queued);
        Some(queued)
    }

    fn taken(&mut self, queued: &Queued) {
        self.waiting.requests -= 1;
        self.waiting.bytes -= queued.bytes;
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::operation::RequestHash;
    use crate::record::{AmendRequest, Amendment, CreateRequest, IdOrigin};

    fn queue(weight: u32, waiting: &[(Priority, &str, i64)]) -> FairQueue {
        let mut queue = FairQueue::new(weight);
        for &(priority, tenant, offset) in waiting {
            queue.push(Queued {
                priority,
                offset: Offset(offset),
                bytes: 10,
                rerouted: false,
                request: OperationRequest::Amend(AmendRequest {
                    id: Uuid::nil(),
                    operation: OperationId(Uuid::nil()),
                    tenant: tenant.to_owned(),
                    caller_id: None,
                    amendment: Amendment::Cancel {
                        workflow: String::new(),
                    },
                    reason: String::new(),
                    asked_by: String::new(),
                    requested_at: Timestamp(0),
                }),
                since: Timestamp(0),
            });
        }
        queue
    }

    fn order(mut queue: FairQueue) -> Vec<i64> {
        std::iter::from_fn(|| queue.pop())
            .map(|queued| queued.offset.0)
            .collect()
    }

    #[test]
    fn requests_are_admitted_tenant_by_tenant_and_in_order_within_each() {
        use Priority::Normal as O;
        let waiting = [
            (O, "flood", 1),
            (O, "flood", 2),
            (O, "flood", 3),
            (O, "calm", 4),
            (O, "", 5),
            (O, "calm", 6),
        ];
        assert_eq!(order(queue(1, &waiting)), [1, 4, 5, 2, 6, 3]);
    }

    #[test]
    fn high_priority_requests_are_admitted_first_by_weight() {
        use Priority::{High as X, Normal as O};
        let waiting = [
            (O, "a", 1),
            (O, "a", 2),
            (O, "a", 3),
            (X, "a", 11),
            (X, "a", 12),
            (X, "a", 13),
            (X, "a", 14),
            (X, "a", 15),
        ];
        assert_eq!(
            order(queue(2, &waiting)),
            [11, 12, 1, 13, 14, 2, 15, 3],
            "two for one, and the rest once no other request waits"
        );
        assert_eq!(order(queue(9, &waiting))[..5], [11, 12, 13, 14, 15]);
    }

    #[test]
    fn waiting_requests_are_counted_by_priority_and_found_by_offset() {
        use Priority::{High as X, Normal as O};
        let mut queue = queue(1, &[(O, "a", 1), (X, "b", 1), (O, "c", 2)]);
        let of = |queue: &FairQueue, priority| {
            let waiting = queue.waiting(priority);
            (waiting.requests, waiting.bytes)
        };
        assert_eq!((of(&queue, O), of(&queue, X)), ((2, 20), (1, 10)));
        let found = queue.find(X, Offset(1)).unwrap();
        assert_eq!(found.request.tenant(), "b");
        assert!(queue.find(X, Offset(2)).is_none());
        queue.pop();
        assert_eq!((of(&queue, O), of(&queue, X)), ((2, 20), (0, 0)));
    }

    #[test]
    fn an_amendment_of_another_tenant_does_not_overtake_a_create() {
        let priority = Priority::Normal;
        let mut queue = queue(1, &[(priority, "a", 1), (priority, "a", 2)]);
        let id = OperationId(Uuid::from_u128(9));
        let of = |tenant: &str, offset, request| Queued {
            priority,
            offset: Offset(offset),
            bytes: 10,
            rerouted: false,
            request: match request {
                None => OperationRequest::Create(create(id, tenant)),
                Some(amend) => OperationRequest::Amend(AmendRequest {
                    operation: id,
                    tenant: tenant.to_owned(),
                    ..amend
                }),
            },
            since: Timestamp(0),
        };
        let Some(OperationRequest::Amend(amend)) = queue
            .find(priority, Offset(1))
            .map(|queued| queued.request.clone())
        else {
            panic!("the request at offset 1 is an amendment");
        };
        queue.push(of("a", 3, None));
        queue.push(of("thief", 4, Some(amend)));
        assert_eq!(order(queue), [1, 2, 3, 4], "all in the line of `a`");
    }

    fn create(operation: OperationId, tenant: &str) -> CreateRequest {
        CreateRequest {
            operation,
            id_origin: IdOrigin::Server,
            workflow: String::new(),
            tenant: tenant.to_owned(),
            caller_id: None,
            input: Vec::new(),
            deadline: None,
            reply_to: None,
            request_hash: RequestHash([0; 16]),
            verify_hash: false,
            requested_at: Timestamp(0),
            traceparent: None,
            resubmission_of: None,
            notify: Vec::new(),
        }
    }
}
