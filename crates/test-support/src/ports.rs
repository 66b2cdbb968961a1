//! Addresses on loopback for processes that tests start.

use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::Mutex;

use uuid::Uuid;

/// Ports below those that the system gives to outgoing connections, which might take one between
/// two processes of a test.
const PORTS: Range<u16> = 15_000..32_000;

/// The claims of this test program. They end with it.
static CLAIMS: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());

/// A free address on loopback. No other call returns it as long as this test program runs, here or
/// in another test program, so that processes can listen on it one after the other.
pub fn free_address() -> SocketAddr {
    loop {
        let drawn = Uuid::new_v4().as_u128() % u128::from(PORTS.end - PORTS.start);
        let port = PORTS.start + u16::try_from(drawn).expect("it is below the end of the range");
        // The claim is the same port of another loopback address, on which nothing else listens.
        let Ok(claim) = TcpListener::bind(("127.0.0.2", port)) else {
            continue;
        };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            let mut claims = CLAIMS.lock().expect("nothing panics while it is held");
            claims.push(claim);
            return address;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::free_address;

    #[test]
    fn no_address_is_given_twice() {
        let addresses = || (0..500).map(|_| free_address()).collect::<Vec<_>>();
        let (other, given) = std::thread::scope(|scope| {
            let other = scope.spawn(addresses);
            let given = addresses();
            (other.join().unwrap(), given)
        });
        let different: BTreeSet<_> = other.into_iter().chain(given).collect();
        assert_eq!(different.len(), 1_000);
    }
}
