//! Descriptors of the protocol's own types, by number and by name. Everybody writes numbers; the names are read all the same.

macro_rules! descriptors {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(pub(crate) const $name: u64 = $code;)*

        pub(crate) fn by_name(name: &str) -> Option<u64> {
            match name {
                $($text => Some($name),)*
                _ => None,
            }
        }
    };
}

descriptors! {
    OPEN = 0x10, "amqp:open:list";
    BEGIN = 0x11, "amqp:begin:list";
    ATTACH = 0x12, "amqp:attach:list";
    FLOW = 0x13, "amqp:flow:list";
    TRANSFER = 0x14, "amqp:transfer:list";
    DISPOSITION = 0x15, "amqp:disposition:list";
    DETACH = 0x16, "amqp:detach:list";
    END = 0x17, "amqp:end:list";
    CLOSE = 0x18, "amqp:close:list";
    ERROR = 0x1d, "amqp:error:list";
    RECEIVED = 0x23, "amqp:received:list";
    ACCEPTED = 0x24, "amqp:accepted:list";
    REJECTED = 0x25, "amqp:rejected:list";
    RELEASED = 0x26, "amqp:released:list";
    MODIFIED = 0x27, "amqp:modified:list";
    SOURCE = 0x28, "amqp:source:list";
    TARGET = 0x29, "amqp:target:list";
    COORDINATOR = 0x30, "amqp:coordinator:list";
    DECLARED = 0x33, "amqp:declared:list";
    TRANSACTIONAL = 0x34, "amqp:transactional-state:list";
    SASL_MECHANISMS = 0x40, "amqp:sasl-mechanisms:list";
    SASL_INIT = 0x41, "amqp:sasl-init:list";
    SASL_CHALLENGE = 0x42, "amqp:sasl-challenge:list";
    SASL_RESPONSE = 0x43, "amqp:sasl-response:list";
    SASL_OUTCOME = 0x44, "amqp:sasl-outcome:list";
    HEADER = 0x70, "amqp:header:list";
    DELIVERY_ANNOTATIONS = 0x71, "amqp:delivery-annotations:map";
    MESSAGE_ANNOTATIONS = 0x72, "amqp:message-annotations:map";
    PROPERTIES = 0x73, "amqp:properties:list";
    APPLICATION_PROPERTIES = 0x74, "amqp:application-properties:map";
    DATA = 0x75, "amqp:data:binary";
    SEQUENCE = 0x76, "amqp:amqp-sequence:list";
    VALUE = 0x77, "amqp:amqp-value:*";
    FOOTER = 0x78, "amqp:footer:map";
}
