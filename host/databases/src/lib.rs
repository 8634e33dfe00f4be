//! Stores on database servers.
