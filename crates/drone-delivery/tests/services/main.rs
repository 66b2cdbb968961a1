//! The five services over real HTTP: effects and repeats, undos in either order, probes, faults, bad
//! input, too many connections, and what the ledger keeps when the services die.

mod connections;
mod effects;
mod faults;
mod ledger;
mod site;
mod undo;
