//! The deliveries of the baselines: the load generator's kinds `drone` and `remote`, four to one.

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

    /// Whether it goes to a remote place, as every fifth one does.
    #[must_use]
    pub fn is_remote(self) -> bool {
        self.index.is_multiple_of(5)
    }

    /// The owner's ID.
    #[must_use]
    pub fn owner(self) -> String {
        format!("owner-{}", self.index % 1_000)
    }

    /// The package's ID.
    #[must_use]
    pub fn package(self) -> String {
        format!("package-{}", self.index)
    }

    /// The drop-off location.
    #[must_use]
    pub fn place(self) -> &'static str {
        match self.is_remote() {
            true => "remote island 7",
            false => "7 Hill Road",
        }
    }

    /// The body of its request, without an ID of the caller.
    #[must_use]
    pub fn body(self) -> String {
        let (owner, package, place) = (self.owner(), self.package(), self.place());
        format!(
            r#"{{"ownerId":"{owner}","pickupLocation":"12 Harbour Street","dropOffLocation":"{place}","pickupTime":"2030-01-01T10:00:00Z","deadline":"2030-01-01T18:00:00Z","expedited":false,"confirmationRequired":"None","packageInfo":{{"packageId":"{package}","size":"Small","weight":1.5,"tag":"load"}}}}"#
        )
    }
}
