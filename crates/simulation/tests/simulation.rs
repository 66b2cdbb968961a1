//! The checks of the simulator, each as a test. They are functions of the library, which is
//! optimised as tests are not.

#[test]
fn random_faults_lose_duplicate_or_half_undo_nothing() {
    waybill_simulation::check_random_faults();
}

#[test]
fn random_faults_at_the_intake_lose_no_accepted_request() {
    waybill_simulation::check_intake();
}

#[test]
fn the_same_seed_gives_the_same_run() {
    waybill_simulation::check_replays();
}

#[test]
fn every_planted_bug_is_caught_as_documented() {
    waybill_simulation::check_planted_bugs();
}

#[test]
fn a_crash_at_every_point_and_another_at_every_later_one_break_no_rule() {
    waybill_simulation::check_crash_points();
}

#[test]
fn no_interleaving_of_a_short_run_breaks_a_rule() {
    waybill_simulation::check_exhaustively();
}

#[test]
fn a_search_of_all_interleavings_reveals_bugs() {
    waybill_simulation::check_searches_reveal_bugs();
}

#[test]
fn one_crash_reveals_bugs_that_no_run_without_a_crash_reveals() {
    waybill_simulation::check_crashes_reveal_bugs();
}

#[test]
fn a_tape_replays_its_run_and_is_made_smaller() {
    waybill_simulation::check_tapes();
}
