//! What is made sure of before the first check: the account's consistency (case 130), and the container.

use serde::Deserialize;
use serde_json::json;
use tracing::warn;

use super::{
    client::{Client, On, Request},
    options::{OpenError, Options},
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccountSaid {
    user_consistency_policy: Option<Policy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    default_consistency_level: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerSaid {
    partition_key: Option<PartitionKey>,
    default_ttl: Option<i64>,
}

#[derive(Deserialize)]
struct PartitionKey {
    paths: Vec<String>,
}

pub(crate) async fn prepare(client: &Client, options: &Options) -> Result<(), OpenError> {
    check_consistency(client, options).await?;
    if find_container(client).await? {
        return Ok(());
    }
    if !options.auto_create_container {
        return Err(OpenError::NoContainer {
            database: options.database.clone(),
            container: options.container.clone(),
        });
    }
    create(client, On::Databases, json!({ "id": options.database })).await?;
    let partition_key = json!({ "paths": ["/id"], "kind": "Hash", "version": 2 });
    create(client, On::Containers, json!({ "id": options.container, "partitionKey": partition_key })).await?;
    match find_container(client).await? {
        true => Ok(()),
        false => Err(OpenError::Unavailable(format!(
            "the container that was made in {} is not there yet",
            client.place().at
        ))),
    }
}

/// A client can ask for less than the account has, never for more, and we ask for nothing: the account's own level is the one that counts. An
/// account that does not say it is refused like one below Strong.
async fn check_consistency(client: &Client, options: &Options) -> Result<(), OpenError> {
    let place = client.place();
    let answer = client.call(Request::get(On::Account)).await.map_err(|fault| fault.at_opening(place))?;
    if answer.status != 200 {
        return Err(answer.refused().at_opening(place));
    }
    let said: AccountSaid = answer.json().map_err(|fault| fault.at_opening(place))?;
    let found = said.user_consistency_policy.map_or_else(|| "unknown".to_owned(), |it| it.default_consistency_level);
    match (found.as_str(), options.allow_relaxed_consistency) {
        ("Strong", _) => Ok(()),
        (_, true) => {
            warn!(at = %place.at, consistency = %found, "the inbox's account is not Strong: a redelivery on another host may not see a record and run again");
            Ok(())
        }
        _ => Err(OpenError::Consistency { at: place.at.clone(), found }),
    }
}

/// Whether the container is there, and as it must be.
async fn find_container(client: &Client) -> Result<bool, OpenError> {
    let place = client.place();
    let answer = client.call(Request::get(On::Container)).await.map_err(|fault| fault.at_opening(place))?;
    match answer.status {
        200 => {}
        404 => return Ok(false),
        _ => return Err(answer.refused().at_opening(place)),
    }
    let said: ContainerSaid = answer.json().map_err(|fault| fault.at_opening(place))?;
    let container = place.container.clone();
    let paths = said.partition_key.map(|it| it.paths).unwrap_or_default();
    if paths != ["/id"] {
        let found = if paths.is_empty() { "none".to_owned() } else { paths.join(", ") };
        return Err(OpenError::PartitionKey { container, found });
    }
    match said.default_ttl {
        // -1: documents live as long as they say themselves, and ours say nothing.
        None | Some(-1) => Ok(true),
        Some(seconds) => Err(OpenError::TimeToLive { container, seconds }),
    }
}

/// That another host was faster is as good.
async fn create(client: &Client, on: On, what: serde_json::Value) -> Result<(), OpenError> {
    let place = client.place();
    let request = Request::post(on, &what).map_err(|fault| fault.at_opening(place))?;
    let answer = client.call(request).await.map_err(|fault| fault.at_opening(place))?;
    match answer.status {
        200 | 201 | 409 => Ok(()),
        status @ (401 | 403) => {
            // Said to the debug log.
            let _ = answer.refused();
            Err(OpenError::Rights { container: place.container.clone(), status })
        }
        _ => Err(answer.refused().at_opening(place)),
    }
}

/// For tests: the database with all that is in it.
#[cfg(feature = "test-server")]
pub(crate) async fn drop_database(options: &Options) -> Result<(), OpenError> {
    let client = Client::new(options)?;
    let answer = client.call(Request::drop_database()).await.map_err(|fault| fault.at_opening(client.place()))?;
    match answer.status {
        200 | 204 | 404 => Ok(()),
        _ => Err(answer.refused().at_opening(client.place())),
    }
}
