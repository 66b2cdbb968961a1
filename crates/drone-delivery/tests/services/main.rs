//! The five services over real HTTP: effects and repeats, undos in either order, probes, faults, bad
//! input, and what the ledger keeps when the services die.

mod effects;
mod faults;
mod ledger;
mod site;
mod undo;
