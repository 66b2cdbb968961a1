//! The deliveries that are sent, and what of each has to stand once it is processed.

/// A delivery by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    index: usize,
}

impl Delivery {
    pub const fn new(index: usize) -> Self {
        Self { index }
    }

    /// Every fifth one goes to a remote place.
    fn is_remote(self) -> bool {
        self.index.is_multiple_of(5)
    }

    /// The steps that have an effect, in the order of their names.
    pub fn effects(self) -> [&'static str; 3] {
        if self.is_remote() {
            ["delivery", "package", "third-party"]
        } else {
            ["delivery", "drone", "package"]
        }
    }

    /// Its request, without an id of its own.
    pub fn body(self) -> String {
        let place = if self.is_remote() {
            "remote island 7"
        } else {
            "7 Hill Road"
        };
        let index = self.index;
        format!(
            r#"{{"ownerId":"owner-{}","pickupLocation":"12 Harbour Street","dropOffLocation":"{place}","pickupTime":"2030-01-01T10:00:00Z","deadline":"2030-01-01T18:00:00Z","expedited":false,"confirmationRequired":"None","packageInfo":{{"packageId":"package-{index}","size":"Small","weight":1.5,"tag":"load"}}}}"#,
            index % 1_000,
        )
    }
}
