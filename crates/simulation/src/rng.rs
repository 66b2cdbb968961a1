//! Everything random in a run: numbers of a seeded generator (xorshift64*), or of a tape. Either
//! replays one run exactly.

/// The source of all random decisions of a run, and what was drawn from it.
#[derive(Clone, Debug)]
pub struct Rng {
    source: Source,
    /// How many numbers were drawn.
    drawn: u64,
    /// A digest of them.
    digest: u64,
    /// The numbers, if they are recorded.
    recorded: Option<Vec<u64>>,
}

#[derive(Clone, Debug)]
enum Source {
    /// The state of a generator.
    Seed(u64),
    /// Numbers. After the last one, every number is [`NEUTRAL`].
    Tape(Vec<u64>),
    /// Nothing is random: except for choices, the likelier case always happens, without delay.
    Script(Script),
}

/// The choices of a run, all of which a search tries.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// The first choices; every later choice takes the first alternative.
    given: Vec<u8>,
    /// What was chosen, and how many alternatives there were.
    pub made: Vec<Choice>,
    /// How many ids were drawn.
    ids: u64,
}

impl Script {
    /// How many choices are given.
    pub fn given(&self) -> usize {
        self.given.len()
    }
}

/// A choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    pub chosen: u8,
    pub alternatives: u8,
}

/// A number with which nearly every decision is against a fault.
pub const NEUTRAL: u64 = u64::MAX;
/// The multipliers of xorshift64* and of the digest (from FNV-1a).
const SCRAMBLE: u64 = 0x2545_f491_4f6c_dd1d;
const DIGEST: u64 = 0x0000_0100_0000_01b3;

impl Rng {
    pub fn new(seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for _ in 0..4 {
            step(&mut state);
        }
        Self::of(Source::Seed(state))
    }

    /// The numbers of a tape.
    pub fn of_tape(tape: Vec<u64>) -> Self {
        Self::of(Source::Tape(tape))
    }

    /// A script that begins with these choices.
    pub fn of_script(given: Vec<u8>) -> Self {
        let script = Script {
            given,
            ..Script::default()
        };
        Self::of(Source::Script(script))
    }

    /// The script; `None` for a seed or a tape.
    pub fn script(&self) -> Option<&Script> {
        match &self.source {
            Source::Script(script) => Some(script),
            Source::Seed(_) | Source::Tape(_) => None,
        }
    }

    pub fn is_script(&self) -> bool {
        self.script().is_some()
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            drawn: 0,
            digest: 0,
            recorded: None,
        }
    }

    /// Records what is drawn from now on.
    pub fn record(&mut self) {
        self.recorded = Some(Vec::new());
    }

    /// What was recorded.
    pub fn tape(&self) -> Vec<u64> {
        self.recorded.clone().unwrap_or_default()
    }

    /// A digest of what was drawn so far.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Another generator that follows from what was drawn so far.
    pub fn fork(&self) -> Self {
        match self.source {
            Source::Seed(_) | Source::Tape(_) => Self::new(self.digest),
            Source::Script(_) => Self::of_script(Vec::new()),
        }
    }

    pub fn next(&mut self) -> u64 {
        let number = match &mut self.source {
            Source::Seed(state) => step(state),
            Source::Tape(tape) => {
                let at = usize::try_from(self.drawn).unwrap();
                tape.get(at).copied().unwrap_or(NEUTRAL)
            }
            Source::Script(_) => 0,
        };
        self.drawn += 1;
        self.digest = (self.digest ^ number).wrapping_mul(DIGEST);
        if let Some(recorded) = &mut self.recorded {
            recorded.push(number);
        }
        number
    }

    /// A number in `0..end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    /// A number in `from..to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        match self.source {
            Source::Seed(_) | Source::Tape(_) => self.below(100) < percent,
            Source::Script(_) => percent > 50,
        }
    }

    /// Like [`chance`](Self::chance), but a search tries both cases.
    pub fn fate(&mut self, percent: u64) -> bool {
        match self.source {
            Source::Seed(_) | Source::Tape(_) => self.chance(percent),
            Source::Script(_) => self.choose(2) == 0,
        }
    }

    /// An index, of which a search tries every value.
    pub fn fate_index(&mut self, len: usize) -> usize {
        match self.source {
            Source::Seed(_) | Source::Tape(_) => self.index(len),
            Source::Script(_) => self.choose(len),
        }
    }

    /// A choice between alternatives. Without a script it is the first.
    pub fn choose(&mut self, alternatives: usize) -> usize {
        let Source::Script(script) = &mut self.source else {
            return 0;
        };
        if alternatives < 2 {
            return 0;
        }
        let alternatives = u8::try_from(alternatives).expect("there are few alternatives");
        let at = script.made.len();
        let chosen = script.given.get(at).copied().unwrap_or_default();
        assert!(chosen < alternatives, "a replay differs from its run");
        script.made.push(Choice {
            chosen,
            alternatives,
        });
        usize::from(chosen)
    }

    /// An id. Neutral numbers give different ids, too; other numbers on a tape must differ.
    pub fn uuid(&mut self) -> uuid::Uuid {
        if let Source::Script(script) = &mut self.source {
            script.ids += 1;
            return uuid::Uuid::from_u64_pair(u64::MAX, script.ids);
        }
        let at = self.drawn;
        let (high, low) = (self.next(), self.next());
        match (high, low) {
            (NEUTRAL, NEUTRAL) => uuid::Uuid::from_u64_pair(at, at),
            (high, low) => uuid::Uuid::from_u64_pair(high, low),
        }
    }
}

/// The next number of a generator.
fn step(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(SCRAMBLE)
}
