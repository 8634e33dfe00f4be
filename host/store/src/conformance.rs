//! The suite that every store passes.
//!
//! An implementation's test file calls [`store_conformance!`](crate::store_conformance) with an async function that makes a fresh, empty store;
//! each rule becomes a test of its own; [`inbox_conformance!`](crate::inbox_conformance) is the same for an inbox by itself. Rules wait with tokio's time, so they run both where it is paused and in real time (where all of them
//! together wait for less than a second).
//!
//! Every rule names the case or protocol rule that it checks. A rule may use [`sample`] and the trait, nothing else.

pub mod actions;
pub mod identity;
pub mod inbox;
pub mod leases;
pub mod listings;
pub mod outbox;
pub mod purge;
pub mod sample;
pub mod sql;
pub mod state;
pub mod writes;

use std::sync::Arc;

use crate::{
    Store,
    query::{Listing, Page},
};

/// What rules take.
pub type Subject = Arc<dyn Store>;

/// Makes a test of every rule.
///
/// ```ignore
/// async fn fresh() -> (Arc<MyStore>, TempDir) { .. }
/// sprag_store::store_conformance!(fresh);
/// ```
///
/// The second part of the pair is kept until the test ends. Options after the function go to `#[tokio::test(..)]`.
#[macro_export]
macro_rules! store_conformance {
    ($make:path $(, $option:ident = $value:expr)*) => {
        $crate::store_conformance!(@rules $make, ($($option = $value),*),
            writes::all_parts_of_a_write_are_there_together
            writes::a_fresh_delivery_is_unknown
            writes::recording_again_keeps_the_first_time
            writes::thirty_two_concurrent_records_of_one_key
            writes::with_the_inbox_off_records_are_not_asked
            writes::the_first_decision_wins
            writes::concurrent_decisions_have_one_winner
            writes::a_late_success_cannot_record_what_failed_first
            writes::an_existing_record_drops_the_unit_of_work
            writes::a_decision_comes_back_as_it_was
            writes::a_decision_that_is_done_is_forgotten
            writes::final_ids_are_found_by_own_and_source_id
            writes::a_final_outcome_is_not_overwritten
            writes::fewer_attempts_do_not_overwrite_more
            writes::if_absent_writes_only_where_nothing_is
            writes::a_resubmission_writes_over_a_final_outcome
            writes::what_an_outcome_does_not_say_stays
            writes::a_duplicate_adds_a_line_and_a_count
            writes::history_keeps_every_line_in_order
            writes::a_kept_message_survives_whole
            writes::a_kept_message_stays_until_another_is_kept
            writes::a_dropped_caller_does_not_stop_a_write
            identity::odd_characters_are_kept_apart
            identity::case_and_trailing_space_matter
            identity::endpoints_do_not_meet
            identity::one_endpoint_one_id_two_event_types
            state::values_versions_and_deletion
            state::versions_are_never_used_twice
            state::scans_are_in_byte_order_and_bounded
            state::prefixes_are_plain_text
            state::endpoints_have_their_own_state
            state::a_read_that_changed_is_a_conflict_and_writes_nothing
            state::a_read_of_an_absent_key_conflicts_with_its_creation
            state::a_scan_conflicts_with_a_new_key
            state::a_bounded_scan_holds_when_keys_beyond_it_change
            state::two_writers_of_one_key_have_one_winner
            outbox::rows_leave_in_order_and_are_claimed_once
            outbox::a_lapsed_claim_is_given_again
            outbox::concurrent_claims_share_no_row
            outbox::a_claimed_session_waits_and_others_go
            outbox::a_failed_row_backs_off_and_holds_its_session
            outbox::a_relay_gets_rows_of_its_endpoints_only
            outbox::a_poison_row_waits_for_an_operator
            outbox::messages_without_a_session_do_not_wait_for_each_other
            outbox::a_message_survives_the_outbox_whole
            actions::one_open_action_per_event
            actions::one_open_action_per_session
            actions::concurrent_actions_have_one_winner
            actions::each_action_on_its_own_merits
            actions::an_idempotency_key_answers_with_the_first_action
            actions::an_action_ends_once
            actions::a_conflict_ends_an_action_too
            actions::audit_shows_who_when_why
            listings::two_thousand_five_hundred_events_without_loss_or_repeat
            listings::events_come_newest_first
            listings::events_are_filtered
            listings::find_events_knows_every_id
            listings::failure_groups_count_alike_failures
            listings::inbox_rows_without_loss_or_repeat
            listings::outbox_rows_show_their_trouble
            listings::audit_without_loss_or_repeat
            listings::a_strange_cursor_is_refused
            listings::empty_listings
            purge::the_inbox_is_purged_in_bounded_batches
            purge::the_inbox_is_purged_per_endpoint
            purge::age_counts_from_the_first_record
            purge::resolved_bodies_go_and_unresolved_stay
            purge::old_outcomes_go_with_their_history
            purge::old_audit_goes
        );
    };
    (@rules $make:path, $options:tt, $($module:ident :: $rule:ident)*) => {
        $(
            #[tokio::test $options]
            async fn $rule() {
                let (store, _keep) = $make().await;
                let store: ::std::sync::Arc<dyn $crate::Store> = store;
                $crate::conformance::$module::$rule(&store).await;
            }
        )*
    };
}

/// Makes a test of every rule of a store's SQL. The function makes a store on a database where handlers have two tables:
/// `account (name text primary key, balance bigint not null, check (balance >= 0))`, with `('ada', 100)` and `('bob', 0)`, and
/// `note (id bigint primary key, text text, at bytes)`.
#[macro_export]
macro_rules! sql_conformance {
    ($make:path $(, $option:ident = $value:expr)*) => {
        mod sql {
            use super::*;

            $crate::store_conformance!(@rules $make, ($($option = $value),*),
                sql::what_a_run_did_is_there_with_its_record
                sql::nobody_sees_it_before
                sql::a_rollback_leaves_nothing
                sql::a_recorded_delivery_drops_the_statements
                sql::two_copies_at_once_apply_once
                sql::a_state_conflict_drops_the_statements
                sql::a_failed_statement_changes_nothing_and_the_run_goes_on
                sql::values_come_back_as_they_went
                sql::results_are_bounded
                sql::parameters_are_counted
                sql::the_transaction_is_not_the_handlers_to_end
                sql::the_hosts_tables_are_out_of_reach
                sql::one_statement_at_a_time
                sql::a_run_that_only_reads
                sql::a_transaction_without_statements
                sql::what_is_over_stays_over
                sql::a_dropped_caller_leaves_no_lock
            );
        }
    };
}

/// Makes a test of every rule of an [`Inbox`](crate::inbox::Inbox), as [`store_conformance!`](crate::store_conformance) does for a store.
#[macro_export]
macro_rules! inbox_conformance {
    ($make:path $(, $option:ident = $value:expr)*) => {
        $crate::inbox_conformance!(@rules $make, ($($option = $value),*),
            a_fresh_id_is_not_recorded
            what_is_recorded_is_found
            many_are_asked_at_once
            recording_again_keeps_the_first_time
            what_was_there_does_not_keep_the_rest_away
            nothing_to_record_is_no_error
            thirty_two_concurrent_records_of_one_id
            odd_characters_are_kept_apart
            case_and_trailing_space_matter
            endpoints_do_not_meet
            a_dropped_caller_does_not_stop_a_record
            a_purge_is_bounded_and_takes_the_oldest
            a_purge_is_of_one_endpoint
            age_counts_from_the_first_record
            purges_side_by_side_take_each_record_once
            rows_without_loss_or_repeat
            rows_are_filtered
            a_strange_cursor_is_refused
        );
    };
    (@rules $make:path, $options:tt, $($rule:ident)*) => {
        $(
            #[tokio::test $options]
            async fn $rule() {
                let (inbox, _keep) = $make().await;
                let inbox: ::std::sync::Arc<dyn $crate::inbox::Inbox> = inbox;
                $crate::conformance::inbox::$rule(&inbox).await;
            }
        )*
    };
}

/// Makes a test of every rule about leases, for a store that has them. As [`store_conformance!`](crate::store_conformance).
#[macro_export]
macro_rules! lease_conformance {
    ($make:path $(, $option:ident = $value:expr)*) => {
        $crate::store_conformance!(@rules $make, ($($option = $value),*),
            leases::of_many_at_once_one_acquires
            leases::an_owner_that_asks_again_has_it
            leases::a_lapsed_lease_is_taken_over_by_one
            leases::a_takeover_comes_after_the_whole_time
            leases::a_renewed_lease_is_held
            leases::after_a_takeover_the_first_owner_has_no_say
            leases::a_write_after_a_takeover_changes_nothing
            leases::a_write_and_a_takeover_at_once
            leases::a_lapsed_lease_that_nobody_took_commits
            leases::a_decision_ends_its_lease
            leases::a_write_that_was_decided_before_ends_its_lease
            leases::a_release_lets_the_next_in
            leases::a_handoff_is_kept_until_it_is_settled
            leases::a_state_conflict_leaves_the_lease
            leases::endpoints_and_ids_are_kept_apart
            leases::leases_are_listed
            leases::old_leases_are_purged
            leases::a_dropped_caller_does_not_stop_an_acquisition
        );
    };
}

/// Walks a listing to its end, `limit` at a time.
pub(crate) async fn walk<T, F, R>(limit: u32, mut next: F) -> Vec<T>
where
    F: FnMut(Page) -> R,
    R: Future<Output = Result<Listing<T>, crate::Error>>,
{
    let (mut all, mut after) = (Vec::new(), None);
    for _ in 0..10_000 {
        let part = next(Page { after: after.take(), limit }).await.expect("a listing answers");
        assert!(part.items.len() <= limit as usize, "a part is no longer than asked for");
        all.extend(part.items);
        match part.next {
            Some(cursor) => after = Some(cursor),
            None => return all,
        }
    }
    panic!("a listing that does not end");
}
