//! The deliveries of the baselines: the generator's kinds `drone` and `remote`, four to one.

/// A delivery by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    index: usize,
}

impl Delivery {
    /// The delivery with this number, from 0 on.
    #[must_use]
    pub const fn new(index: usize) -> Self {
        Self { index }
    }

    /// Every fifth one goes to a remote place.
    #[must_use]
    pub fn is_remote(self) -> bool {
        self.index.is_multiple_of(5)
    }

    /// Who orders it.
    #[must_use]
    pub fn owner(self) -> String {
        format!("owner-{}", self.index % 1_000)
    }

    /// What is delivered.
    #[must_use]
    pub fn package(self) -> String {
        format!("package-{}", self.index)
    }

    /// Where to.
    #[must_use]
    pub fn place(self) -> &'static str {
        match self.is_remote() {
            true => "remote island 7",
            false => "7 Hill Road",
        }
    }

    /// Its request, without an id of its own.
    #[must_use]
    pub fn body(self) -> String {
        let (owner, package, place) = (self.owner(), self.package(), self.place());
        format!(
            r#"{{"ownerId":"{owner}","pickupLocation":"12 Harbour Street","dropOffLocation":"{place}","pickupTime":"2030-01-01T10:00:00Z","deadline":"2030-01-01T18:00:00Z","expedited":false,"confirmationRequired":"None","packageInfo":{{"packageId":"{package}","size":"Small","weight":1.5,"tag":"load"}}}}"#
        )
    }
}
