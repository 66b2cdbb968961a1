//! Draws requests from the mix by seed and index alone. The same seed makes the same requests,
//! independent of transport, rate and answers.

use std::collections::BTreeMap;

use super::Phase;
use super::kind::{Drawn, Kind};

/// The source of random requests.
#[derive(Clone, Debug)]
pub struct Deck {
    seed: u64,
    kinds: Weighted<Kind>,
    /// The tenants of each phase; `None` if requests have no tenant.
    tenants: Vec<Option<Weighted<u16>>>,
    /// The tenants' names.
    names: Vec<String>,
}

/// Items with the cumulative ends of their shares of 1.
#[derive(Clone, Debug)]
struct Weighted<T>(Vec<(T, f64)>);

impl Deck {
    /// A deck. The caller must have checked the weights: none is negative, and their sum is
    /// positive.
    pub fn new(
        seed: u64,
        mix: &BTreeMap<Kind, f64>,
        tenants: &BTreeMap<String, f64>,
        phases: &[Phase],
    ) -> Self {
        let of_phases = phases.iter().filter_map(|phase| phase.tenants.as_ref());
        let mut names: Vec<String> = of_phases
            .chain([tenants])
            .flat_map(|tenants| tenants.keys().cloned())
            .collect();
        names.sort_unstable();
        names.dedup();
        let number = |name: &String| names.binary_search(name).unwrap_or_default() as u16;
        let weighted = |tenants: &BTreeMap<String, f64>| {
            let tenants = tenants.iter().map(|(name, weight)| (number(name), *weight));
            (tenants.len() > 0).then(|| Weighted::new(tenants))
        };
        let of_phase = |phase: &Phase| weighted(phase.tenants.as_ref().unwrap_or(tenants));
        Self {
            seed,
            kinds: Weighted::new(mix.iter().map(|(kind, weight)| (*kind, *weight))),
            tenants: phases.iter().map(of_phase).collect(),
            names,
        }
    }

    /// The request with this index, in this phase.
    pub fn draw(&self, index: u64, phase: usize) -> Drawn {
        let seed = number(self.seed, 0);
        let tenants = self.tenants[phase].as_ref();
        Drawn {
            index,
            kind: self.kinds.at(unit(number(seed ^ index, 1))),
            tenant: tenants.map(|tenants| tenants.at(unit(number(seed ^ index, 2)))),
            phase: phase as u16,
        }
    }

    /// The tenants of all phases.
    pub fn tenants(&self) -> &[String] {
        &self.names
    }
}

impl<T: Copy> Weighted<T> {
    fn new(weights: impl Iterator<Item = (T, f64)> + Clone) -> Self {
        let sum: f64 = weights.clone().map(|(_, weight)| weight).sum();
        let mut end = 0.0;
        let shares = weights
            .filter(|(_, weight)| *weight > 0.0)
            .map(|(one, weight)| {
                end += weight / sum;
                (one, end)
            });
        Self(shares.collect())
    }

    fn at(&self, share: f64) -> T {
        let found = self.0.iter().find(|(_, end)| share < *end);
        // The ends are rounded, so the last one may be slightly below 1.
        let found = found.or(self.0.last());
        found.expect("weights were checked: one is above 0").0
    }
}

/// A pseudorandom number: splitmix64 of `from`, different for each `purpose`.
pub const fn number(from: u64, purpose: u64) -> u64 {
    let mut z = from.wrapping_add((purpose + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The number's upper 53 bits as a fraction in [0, 1).
fn unit(number: u64) -> f64 {
    (number >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn deck(seed: u64) -> Deck {
        let mix = BTreeMap::from([
            (Kind::Drone, 3.0),
            (Kind::Remote, 1.0),
            (Kind::Suspended, 0.0),
        ]);
        let tenants = BTreeMap::from([("quiet".to_owned(), 1.0)]);
        let phase = |tenants| Phase {
            name: "a".to_owned(),
            rate: 1.0,
            rate_end: None,
            length: Duration::from_secs(1),
            tenants,
        };
        let flood = BTreeMap::from([("quiet".to_owned(), 1.0), ("noisy".to_owned(), 9.0)]);
        Deck::new(seed, &mix, &tenants, &[phase(None), phase(Some(flood))])
    }

    #[test]
    fn the_seed_determines_the_requests() {
        let draw = |deck: &Deck| {
            (0..1_000)
                .map(|index| deck.draw(index, 1))
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(&deck(5)), draw(&deck(5)));
        assert_ne!(draw(&deck(5)), draw(&deck(6)));
    }

    #[test]
    fn shares_are_those_of_the_weights() {
        let deck = deck(1);
        let drawn: Vec<Drawn> = (0..100_000).map(|index| deck.draw(index, 1)).collect();
        let share = |is: &dyn Fn(&Drawn) -> bool| {
            drawn.iter().filter(|drawn| is(drawn)).count() as f64 / drawn.len() as f64
        };
        assert!((share(&|drawn| drawn.kind == Kind::Drone) - 0.75).abs() < 0.01);
        assert!(share(&|drawn| drawn.kind == Kind::Suspended) == 0.0);
        let noisy = deck.tenants().iter().position(|name| name == "noisy");
        let noisy = noisy.expect("it is named") as u16;
        assert!((share(&|drawn| drawn.tenant == Some(noisy)) - 0.9).abs() < 0.01);
        // Kind and tenant are independent of each other.
        let both = share(&|drawn| drawn.tenant == Some(noisy) && drawn.kind == Kind::Drone);
        assert!((both - 0.675).abs() < 0.01, "{both}");
    }

    #[test]
    fn a_phase_inherits_the_tenants_of_its_scenario() {
        let deck = deck(1);
        let quiet = deck.tenants().iter().position(|name| name == "quiet");
        let of_first = (0..1_000).map(|index| deck.draw(index, 0).tenant);
        let quiet = quiet.map(|quiet| quiet as u16);
        assert!(of_first.into_iter().all(|tenant| tenant == quiet));
    }
}
