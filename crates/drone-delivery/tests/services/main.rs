//! The five services over real HTTP: effects and repeats, undos in either order, probes, faults,
//! bad input, too many connections, and the ledger after the services die.

mod connections;
mod effects;
mod faults;
mod ledger;
mod site;
mod undo;
