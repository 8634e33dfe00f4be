//! The role that handlers' statements are carried out as: it must have no way to the host's tables (P37). Looked at once, when the store is opened.

use super::super::{
    connections::{Connection, OpenFault},
    options::OpenError,
    schema,
};

/// A name as it stands in a statement.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Whether the role can be taken, and cannot reach the host's tables.
pub(crate) async fn check(connection: Connection<'_>, role: &str) -> Result<(), OpenFault> {
    let refuse = |problem: String| Err(OpenFault::Open(OpenError::Role { role: role.to_owned(), problem }));
    let found = connection
        .row(
            "SELECT r.rolsuper, pg_has_role(current_user, r.oid, 'MEMBER'), r.rolname = current_user FROM pg_roles r WHERE r.rolname = $1",
            &[&role],
        )
        .await?;
    let Some(found) = found else {
        return refuse(format!("there is no such role; make it: CREATE ROLE {} NOLOGIN", quoted(role)));
    };
    let (is_super, is_ours, is_same): (bool, bool, bool) = (found.get(0), found.get(1), found.get(2));
    if is_super || is_same {
        return refuse(
            "it must be a role of its own, and no superuser: it would have all rights on the host's tables".to_owned(),
        );
    }
    if !is_ours {
        return refuse(format!("the store's user may not take it: GRANT {} TO CURRENT_USER", quoted(role)));
    }
    let tables: Vec<&str> = schema::tables().collect();
    let reached = connection
        .rows(
            "SELECT t.name, has_any_column_privilege($1, to_regclass(t.name)::oid, 'SELECT, INSERT, UPDATE, REFERENCES') \
             OR has_table_privilege($1, to_regclass(t.name)::oid, 'DELETE, TRUNCATE, TRIGGER') \
             OR pg_has_role($1, (SELECT relowner FROM pg_class WHERE oid = to_regclass(t.name)), 'MEMBER') \
             FROM unnest($2::text[]) AS t(name) WHERE to_regclass(t.name) IS NOT NULL",
            &[&role, &tables],
        )
        .await?;
    let reached: Vec<String> =
        reached.iter().filter(|row| row.get::<_, bool>(1)).map(|row| row.get::<_, String>(0)).collect();
    if !reached.is_empty() {
        return refuse(format!(
            "it has rights on the host's tables {}: REVOKE ALL ON {} FROM {}, PUBLIC, and let it not be a member of their owner",
            reached.join(", "),
            reached.join(", "),
            quoted(role)
        ));
    }
    Ok(())
}
