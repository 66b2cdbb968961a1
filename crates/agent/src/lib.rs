//! The library for agent authors: handler trait, run loop and the declarative HTTP agent
