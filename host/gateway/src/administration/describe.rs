//! Descriptions of entities, in the order in which Azure writes their elements.

use sprag_broker::{EntityCounts, EntityView};

use super::{
    atom::Entry,
    duration::{FOR_EVER, write as duration},
    settings::{self, Kind, kept, status_text},
    xml::Element,
};

/// Of the counts alone: JavaScript wants one declaration here, and takes the prefix from it.
const COUNTS: &str = "http://schemas.microsoft.com/netservices/2011/06/servicebus";

pub(super) fn entity(view: &EntityView, host: &str) -> Entry {
    let kind = Kind::of(&view.spec);
    let fields = match kind {
        Kind::Queue => queue(view, host),
        Kind::Topic => topic(view),
        Kind::Subscription => subscription(view, host),
    };
    let (path, title) = match (kind, view.spec.name.as_str().rsplit_once('/')) {
        (Kind::Subscription, Some((topic, name))) => (format!("{topic}/Subscriptions/{name}"), name),
        _ => (view.spec.name.to_string(), view.spec.name.as_str()),
    };
    Entry {
        path,
        title: title.to_owned(),
        created_at: view.created_at,
        updated_at: view.updated_at,
        description: Element::new(kind.element()).containing(fields.into_iter().flatten()),
    }
}

fn some(name: &'static str, text: impl ToString) -> Option<Element> {
    Some(Element::text(name, text))
}

/// Where messages go on, as a whole address, as Azure answers it.
fn address(name: &'static str, target: Option<&sprag_core::ids::EntityName>, host: &str) -> Option<Element> {
    target.map(|target| Element::text(name, format!("sb://{host}/{target}")))
}

fn metadata(view: &EntityView) -> Option<Element> {
    view.spec.user_metadata.as_ref().map(|text| Element::text("UserMetadata", text))
}

fn counts(view: &EntityView) -> Option<Element> {
    let EntityCounts { active, dead_letters, scheduled, transfer_dead_letters, .. } = view.counts;
    Some(Element::new("CountDetails").with("xmlns:d2p1", COUNTS).containing([
        Element::text("d2p1:ActiveMessageCount", active),
        Element::text("d2p1:DeadLetterMessageCount", dead_letters),
        Element::text("d2p1:ScheduledMessageCount", scheduled),
        Element::text("d2p1:TransferMessageCount", 0),
        Element::text("d2p1:TransferDeadLetterMessageCount", transfer_dead_letters),
    ]))
}

/// All that an entity holds, in whatever state, as Azure counts it.
fn held(view: &EntityView) -> u64 {
    let EntityCounts { active, dead_letters, scheduled, deferred, transfer_dead_letters } = view.counts;
    active + dead_letters + scheduled + deferred + transfer_dead_letters
}

fn queue(view: &EntityView, host: &str) -> Vec<Option<Element>> {
    let spec = &view.spec;
    vec![
        some("LockDuration", duration(Some(spec.lock_duration))),
        some("MaxSizeInMegabytes", settings::size(spec)),
        some("RequiresDuplicateDetection", spec.duplicate_detection.is_some()),
        some("RequiresSession", spec.requires_session),
        some("DefaultMessageTimeToLive", duration(spec.default_ttl)),
        some("DeadLetteringOnMessageExpiration", spec.dead_letter_on_expiry),
        some("DuplicateDetectionHistoryTimeWindow", settings::window(spec)),
        some("MaxDeliveryCount", spec.max_delivery_count),
        some("EnableBatchedOperations", kept(spec, "EnableBatchedOperations")),
        some("SizeInBytes", view.bytes),
        some("MessageCount", held(view)),
        some("IsAnonymousAccessible", false),
        some("AuthorizationRules", ""),
        some("Status", status_text(spec.status)),
        address("ForwardTo", spec.forward_to.as_ref(), host),
        metadata(view),
        some("CreatedAt", view.created_at),
        some("UpdatedAt", view.updated_at),
        some("AccessedAt", view.accessed_at),
        some("SupportOrdering", kept(spec, "SupportOrdering")),
        counts(view),
        some("AutoDeleteOnIdle", FOR_EVER),
        some("EnablePartitioning", spec.partitioned),
        some("EntityAvailabilityStatus", "Available"),
        address("ForwardDeadLetteredMessagesTo", spec.forward_dead_letters_to.as_ref(), host),
        some("EnableExpress", kept(spec, "EnableExpress")),
        some("MaxMessageSizeInKilobytes", settings::message_size(spec)),
    ]
}

fn topic(view: &EntityView) -> Vec<Option<Element>> {
    let spec = &view.spec;
    vec![
        some("DefaultMessageTimeToLive", duration(spec.default_ttl)),
        some("MaxSizeInMegabytes", settings::size(spec)),
        some("RequiresDuplicateDetection", spec.duplicate_detection.is_some()),
        some("DuplicateDetectionHistoryTimeWindow", settings::window(spec)),
        some("EnableBatchedOperations", kept(spec, "EnableBatchedOperations")),
        some("SizeInBytes", view.bytes),
        some("FilteringMessagesBeforePublishing", false),
        some("IsAnonymousAccessible", false),
        some("AuthorizationRules", ""),
        some("Status", status_text(spec.status)),
        metadata(view),
        some("CreatedAt", view.created_at),
        some("UpdatedAt", view.updated_at),
        some("AccessedAt", view.accessed_at),
        some("SupportOrdering", kept(spec, "SupportOrdering")),
        counts(view),
        some("SubscriptionCount", view.subscriptions.len()),
        some("AutoDeleteOnIdle", FOR_EVER),
        some("EnablePartitioning", spec.partitioned),
        some("EntityAvailabilityStatus", "Available"),
        some("EnableSubscriptionPartitioning", false),
        some("EnableExpress", kept(spec, "EnableExpress")),
        some("MaxMessageSizeInKilobytes", settings::message_size(spec)),
    ]
}

fn subscription(view: &EntityView, host: &str) -> Vec<Option<Element>> {
    let spec = &view.spec;
    let on_errors = "DeadLetteringOnFilterEvaluationExceptions";
    vec![
        some("LockDuration", duration(Some(spec.lock_duration))),
        some("RequiresSession", spec.requires_session),
        some("DefaultMessageTimeToLive", duration(spec.default_ttl)),
        some("DeadLetteringOnMessageExpiration", spec.dead_letter_on_expiry),
        some(on_errors, kept(spec, on_errors)),
        some("MessageCount", held(view)),
        some("MaxDeliveryCount", spec.max_delivery_count),
        some("EnableBatchedOperations", kept(spec, "EnableBatchedOperations")),
        some("Status", status_text(spec.status)),
        address("ForwardTo", spec.forward_to.as_ref(), host),
        some("CreatedAt", view.created_at),
        some("UpdatedAt", view.updated_at),
        some("AccessedAt", view.accessed_at),
        counts(view),
        metadata(view),
        address("ForwardDeadLetteredMessagesTo", spec.forward_dead_letters_to.as_ref(), host),
        some("AutoDeleteOnIdle", FOR_EVER),
        some("EntityAvailabilityStatus", "Available"),
    ]
}
