//! Random numbers for tests, all from one seed.

/// A small generator (SplitMix64) with the same numbers on every machine and in every release.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The generator for `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A random number of 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// An index below `len`; 0 if `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number in `1..=high` with every magnitude equally likely: small ones are frequent.
    pub fn magnitude(&mut self, high: u64) -> u64 {
        let bits = self.between(1, u64::from(64 - high.max(1).leading_zeros()));
        (self.next_u64() >> (64 - bits)).clamp(1, high.max(1))
    }

    /// `true` with a probability of `percent` in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// Fills `buf` with random bytes.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}

/// One random case of a test. If the test panics during its lifetime, the line that reproduces the case is printed.
#[derive(Debug)]
pub struct Case {
    /// The seed of this case.
    pub seed: u64,
}

impl Case {
    /// The initial generator of this case.
    #[must_use]
    pub fn rng(&self) -> Rng {
        Rng::new(self.seed)
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let package = std::env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "PACKAGE".into());
            let thread = std::thread::current();
            let test = thread.name().unwrap_or("TEST");
            eprintln!("repeat this case: EXTANT_SEED={:#x} cargo test -p {package} {test}", self.seed);
        }
    }
}

/// `count` cases, the same in every run, times the factor of [`rounds`]. `name` distinguishes the tests of a program.
/// With EXTANT_SEED there is only the case of that seed. EXTANT_DRAW selects other cases, different for each value.
pub fn cases(name: &str, count: u64) -> impl Iterator<Item = Case> {
    let asked = std::env::var("EXTANT_SEED").ok().map(|text| {
        let digits = text.trim_start_matches("0x");
        u64::from_str_radix(digits, if digits.len() < text.len() { 16 } else { 10 })
            .unwrap_or_else(|_| panic!("EXTANT_SEED={text} is neither a number nor 0x and hexadecimal digits"))
    });
    // FNV-1a over the name
    let drawn = std::env::var("EXTANT_DRAW").unwrap_or_default();
    let start = name
        .bytes()
        .chain(drawn.bytes())
        .fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
    let mut seeds = Rng::new(start);
    let count = if asked.is_some() { 1 } else { rounds(count) };
    (0..count).map(move |_| Case { seed: asked.unwrap_or_else(|| seeds.next_u64()) })
}

/// `usual` times EXTANT_CAMPAIGN, if set, as by `make long`.
#[must_use]
pub fn rounds(usual: u64) -> u64 {
    let factor = std::env::var("EXTANT_CAMPAIGN")
        .map_or(1, |text| text.parse().unwrap_or_else(|_| panic!("EXTANT_CAMPAIGN={text} is not a number")));
    usual.saturating_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        // the published sequence for seed 1234567
        let mut rng = Rng::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn bounds_hold() {
        let mut rng = Rng::new(1);
        for _ in 0..1000 {
            assert!(rng.below(7) < 7);
            assert!((3..=5).contains(&rng.between(3, 5)));
            assert!((1..=100).contains(&rng.magnitude(100)));
        }
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.magnitude(u64::MAX).min(1), 1);
        assert_eq!(rng.bytes(13).len(), 13);
    }

    #[test]
    fn cases_are_the_same_in_every_run_and_differ_by_name() {
        let seeds = |name| cases(name, 3).map(|case| case.seed).collect::<Vec<_>>();
        assert_eq!(seeds("a"), seeds("a"));
        if std::env::var_os("EXTANT_SEED").is_none() {
            assert_ne!(seeds("a"), seeds("b"));
        }
    }
}
