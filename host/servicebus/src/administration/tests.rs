//! What the service answers, to the letter, and what is sent back.

use std::time::Duration;

use super::*;

/// As Azure answers for a queue; the last element is one that nobody here knows.
const QUEUE: &str = "<entry xmlns=\"http://www.w3.org/2005/Atom\"><id>https://ns.servicebus.windows.net/orders?api-version=2021-05</id>\
<title type=\"text\">orders</title><published>2026-06-05T03:55:06Z</published><updated>2026-06-05T03:55:07Z</updated>\
<author><name>ns</name></author><link rel=\"self\" href=\"https://ns.servicebus.windows.net/orders?api-version=2021-05\"/>\
<content type=\"application/xml\"><QueueDescription xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\" \
xmlns:i=\"http://www.w3.org/2001/XMLSchema-instance\"><LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes>\
<RequiresDuplicateDetection>false</RequiresDuplicateDetection><RequiresSession>true</RequiresSession>\
<DefaultMessageTimeToLive>P14D</DefaultMessageTimeToLive><DeadLetteringOnMessageExpiration>false</DeadLetteringOnMessageExpiration>\
<DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow><MaxDeliveryCount>10</MaxDeliveryCount>\
<EnableBatchedOperations>true</EnableBatchedOperations><SizeInBytes>17</SizeInBytes><MessageCount>1</MessageCount>\
<IsAnonymousAccessible>false</IsAnonymousAccessible><AuthorizationRules><AuthorizationRule i:type=\"SharedAccessAuthorizationRule\">\
<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue><Rights><AccessRights>Listen</AccessRights></Rights>\
<KeyName>reader</KeyName></AuthorizationRule></AuthorizationRules><Status>Active</Status><CreatedAt>2026-06-05T03:55:06.62Z</CreatedAt>\
<UpdatedAt>2026-06-05T03:55:07.093Z</UpdatedAt><AccessedAt>0001-01-01T00:00:00Z</AccessedAt><SupportOrdering>true</SupportOrdering>\
<CountDetails xmlns:d2p1=\"http://schemas.microsoft.com/netservices/2011/06/servicebus\"><d2p1:ActiveMessageCount>1</d2p1:ActiveMessageCount>\
<d2p1:DeadLetterMessageCount>0</d2p1:DeadLetterMessageCount></CountDetails>\
<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle><EnablePartitioning>false</EnablePartitioning>\
<EntityAvailabilityStatus>Available</EntityAvailabilityStatus><EnableExpress>false</EnableExpress>\
<MaxMessageSizeInKilobytes>256</MaxMessageSizeInKilobytes><d2p2:Tomorrow xmlns:d2p2=\"urn:t\" i:nil=\"true\">1 &amp; 2</d2p2:Tomorrow>\
</QueueDescription></content></entry>";

fn entity(document: &str, topic: Option<&str>) -> Entity {
    let Ok(atom::Answer::Entry(entry)) = atom::read(document) else { panic!("an entry: {document}") };
    Entity::read(&entry.title, topic.map(Into::into).as_ref(), entry.description).expect("it is read")
}

#[test]
fn a_queue_of_azure_is_read() {
    let queue = entity(QUEUE, None);
    assert_eq!(queue.path, Path::queue("orders"));
    assert_eq!((queue.requires_session, queue.lock_duration), (true, Duration::from_secs(60)));
    assert_eq!((queue.max_delivery_count, queue.duplicate_detection, queue.partitioned), (10, false, false));
    assert_eq!(queue.time_to_live, Some(Duration::from_secs(14 * 86_400)));
    assert_eq!((queue.auto_delete_on_idle, queue.forward_to, queue.status), (None, None, Status::Active));
}

/// What is set changes in its place; what is new comes where the service looks for it; what only the service tells is left out; everything else,
/// what nobody knows included, goes back to the letter.
#[test]
fn a_change_keeps_what_is_not_known() {
    let settings = [
        Setting::LockDuration(Duration::from_secs(30)),
        Setting::TimeToLive(None),
        Setting::ForwardTo(Some("next".into())),
    ];
    let sent = atom::write(entity(QUEUE, None).changed(&settings, "ns.servicebus.windows.net"));
    let head = "<?xml version=\"1.0\" encoding=\"utf-8\"?><entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\">\
        <QueueDescription xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\" \
        xmlns:i=\"http://www.w3.org/2001/XMLSchema-instance\">";
    let body = "<LockDuration>PT30S</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes>\
        <RequiresDuplicateDetection>false</RequiresDuplicateDetection><RequiresSession>true</RequiresSession>\
        <DeadLetteringOnMessageExpiration>false</DeadLetteringOnMessageExpiration>\
        <DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow><MaxDeliveryCount>10</MaxDeliveryCount>\
        <EnableBatchedOperations>true</EnableBatchedOperations>\
        <IsAnonymousAccessible>false</IsAnonymousAccessible><AuthorizationRules><AuthorizationRule i:type=\"SharedAccessAuthorizationRule\">\
        <ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue><Rights><AccessRights>Listen</AccessRights></Rights>\
        <KeyName>reader</KeyName></AuthorizationRule></AuthorizationRules><Status>Active</Status>\
        <ForwardTo>sb://ns.servicebus.windows.net/next</ForwardTo><SupportOrdering>true</SupportOrdering>\
        <AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle><EnablePartitioning>false</EnablePartitioning>\
        <EnableExpress>false</EnableExpress>\
        <MaxMessageSizeInKilobytes>256</MaxMessageSizeInKilobytes><d2p2:Tomorrow xmlns:d2p2=\"urn:t\" i:nil=\"true\">1 &amp; 2</d2p2:Tomorrow>\
        </QueueDescription></content></entry>";
    assert_eq!(sent, format!("{head}{body}"));
}

/// Another writer of the same XML: prefixes for all, declared far outside, and everything indented.
#[test]
fn prefixes_and_where_they_are_declared_do_not_matter() {
    let document = "<a:entry xmlns:a='http://www.w3.org/2005/Atom' xmlns:sb='http://schemas.microsoft.com/netservices/2010/10/servicebus/connect'>\
        <a:title>s</a:title>\n <a:content>\n  <sb:SubscriptionDescription xmlns:t='urn:t'>\n   <sb:MaxDeliveryCount>3</sb:MaxDeliveryCount>\n   \
        <sb:ForwardTo>https://ns.servicebus.windows.net/billing</sb:ForwardTo><t:New><t:Part>1</t:Part></t:New>\
        </sb:SubscriptionDescription></a:content></a:entry>";
    let subscription = entity(document, Some("shop"));
    assert_eq!(subscription.path, Path::subscription("shop", "s"));
    assert_eq!((subscription.max_delivery_count, subscription.forward_to.clone()), (3, Some("billing".into())));
    assert_eq!(subscription.lock_duration, Duration::from_secs(60), "the service's default");
    let sent = subscription.changed(&[Setting::AutoDeleteOnIdle(Some(Duration::from_secs(300)))], "ns").write();
    assert_eq!(
        sent,
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><sb:SubscriptionDescription xmlns:t=\"urn:t\" xmlns:a=\"http://www.w3.org/2005/Atom\" \
         xmlns:sb=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\"><sb:MaxDeliveryCount>3</sb:MaxDeliveryCount>\
         <sb:ForwardTo>https://ns.servicebus.windows.net/billing</sb:ForwardTo><sb:AutoDeleteOnIdle>PT300S</sb:AutoDeleteOnIdle>\
         <t:New><t:Part>1</t:Part></t:New></sb:SubscriptionDescription>"
    );
}

#[test]
fn a_new_subscription_is_described_in_the_services_order() {
    let path = Path::subscription("shop", "billing");
    // In any order.
    let settings =
        [Setting::ForwardTo(Some("billing".into())), Setting::MaxDeliveryCount(7), Setting::RequiresSession(false)];
    let mut description = entity::new(&path, &settings, "ns");
    let rule = Rule::of(DEFAULT_RULE, Some("a < 'b'")).with_action("SET c = 1");
    entity::place(&mut description, rule.write(entity::DEFAULT_RULE));
    let names: Vec<_> = description.children.iter().map(|child| child.local()).collect();
    assert_eq!(names, ["RequiresSession", "DefaultRuleDescription", "MaxDeliveryCount", "ForwardTo"]);
    let written = description.write();
    let filter = "<Filter xmlns:i=\"http://www.w3.org/2001/XMLSchema-instance\" i:type=\"SqlFilter\">\
        <SqlExpression>a &lt; 'b'</SqlExpression><CompatibilityLevel>20</CompatibilityLevel></Filter>";
    assert!(written.contains(&filter.replace('\'', "&apos;")) || written.contains(filter), "{written}");
    assert!(written.contains("<Name>$Default</Name></DefaultRuleDescription>"), "{written}");
}

#[test]
fn rules_of_azure_are_read_and_what_is_not_known_of_them_stays() {
    let entry = |description: &str| {
        format!(
            "<entry xmlns=\"http://www.w3.org/2005/Atom\"><title type=\"text\">r</title><content type=\"application/xml\">\
             <RuleDescription xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\" \
             xmlns:i=\"http://www.w3.org/2001/XMLSchema-instance\">{description}</RuleDescription></content></entry>"
        )
    };
    let read = |description: &str| {
        let Ok(atom::Answer::Entry(it)) = atom::read(&entry(description)) else { panic!("an entry: {description}") };
        (Rule::read(&it.title, &it.description).expect("it is read"), it.description)
    };
    let all = "<Filter i:type=\"TrueFilter\"><SqlExpression>1=1</SqlExpression><CompatibilityLevel>20</CompatibilityLevel></Filter>\
        <Action i:type=\"EmptyRuleAction\"/><CreatedAt>2026-06-05T03:55:07Z</CreatedAt><Name>$Default</Name>";
    assert_eq!(read(all).0, Rule::of("$Default", None));
    let sql = "<Filter i:type=\"SqlFilter\"><SqlExpression>a = 1</SqlExpression></Filter>\
        <Action i:type=\"SqlRuleAction\"><SqlExpression>SET b = 2</SqlExpression></Action><Name>r</Name>";
    let (rule, _) = read(sql);
    assert_eq!(rule, Rule::of("r", Some("a = 1")).with_action("SET b = 2"));
    assert!(rule.agrees_with(&Rule::of("other", Some("a = 1")).with_action("SET b = 2;")));
    let correlated = "<Filter i:type=\"CorrelationFilter\"><CorrelationId>7</CorrelationId><Properties><KeyValueOfstringanyType>\
        <Key>k</Key><Value i:type=\"d6p1:int\" xmlns:d6p1=\"http://www.w3.org/2001/XMLSchema\">3</Value></KeyValueOfstringanyType></Properties>\
        </Filter><Action i:type=\"EmptyRuleAction\"/><CreatedAt>2026-06-05T03:55:07Z</CreatedAt><Name>r</Name><New>kept</New>";
    let (rule, description) = read(correlated);
    assert_eq!(rule.to_string(), "r: CorrelationFilter CorrelationId=7, k=3");
    let again = rule.describe().write();
    assert!(again.contains("<Key>k</Key><Value i:type=\"d6p1:int\" xmlns:d6p1="), "{again}");
    let changed = Rule::of("r", None).changed(description).write();
    assert!(changed.contains("i:type=\"TrueFilter\"") && changed.contains("<New>kept</New>"), "{changed}");
    assert!(!changed.contains("CreatedAt") && !changed.contains("CorrelationFilter"), "{changed}");
}

/// So the service answers for an entity that is not there.
#[test]
fn lists_are_read_and_an_empty_one_is_no_entry() {
    let empty = "<feed xmlns=\"http://www.w3.org/2005/Atom\"><title type=\"text\">Publicly Listed Services</title><id>https://ns/x</id>\
        <updated>2026-06-05T03:55:07Z</updated><link rel=\"self\" href=\"https://ns/x\"/><generator>Service Bus 1.1</generator></feed>";
    assert!(matches!(atom::read(empty), Ok(atom::Answer::List { entries, more: false }) if entries.is_empty()));
    let page = format!(
        "<feed xmlns=\"http://www.w3.org/2005/Atom\"><link rel=\"self\" href=\"x\"/><link rel=\"next\" href=\"y\"/>{QUEUE}{QUEUE}</feed>"
    );
    assert!(matches!(atom::read(&page), Ok(atom::Answer::List { entries, more: true }) if entries.len() == 2));
    for wrong in ["", "<html/>", "<entry/>", "<entry><content/></entry>"] {
        assert!(atom::read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_cannot_be_is_named() {
    for (element, problem) in [
        ("<LockDuration>soon</LockDuration>", "LockDuration"),
        ("<RequiresSession>maybe</RequiresSession>", "RequiresSession"),
        ("<MaxDeliveryCount>-1</MaxDeliveryCount>", "MaxDeliveryCount"),
    ] {
        let description = xml::Element::read(&format!("<QueueDescription>{element}</QueueDescription>")).expect("XML");
        let error = Entity::read("q", None, description).expect_err("it is wrong");
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn a_configuration_shows_no_secret() {
    let connection =
        ConnectionString::parse("Endpoint=sb://h;SharedAccessKeyName=R;SharedAccessKey=geheim").expect("it is one");
    let config = Config::new(connection);
    assert!(!format!("{config:?}").contains("geheim"));
}
