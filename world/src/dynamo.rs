//! DynamoDB in process: dynoxide behind an address on loopback.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType,
    ScalarAttributeType,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::client;
use crate::server;

/// The key attribute of a lease table.
pub const KEY: &str = "lease_key";

/// One row: its attributes by name, the key included.
pub type Row = HashMap<String, AttributeValue>;

/// How a [`Dynamo`] is set up.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The port to listen on; any free one if absent.
    pub port: Option<u16>,
}

impl Options {
    /// Listens on a given port.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }
}

/// A DynamoDB of its own, empty at the start and gone when dropped (a request that runs is let finish).
///
/// The helpers go to the service itself, not through a proxy, and panic where it refuses.
#[derive(Debug)]
pub struct Dynamo {
    url: String,
    client: Client,
    _stop: DropGuard,
}

impl Dynamo {
    /// Starts one.
    ///
    /// # Panics
    /// If the port is taken.
    pub async fn start(options: Options) -> Self {
        let listener = server::listen(options.port).await;
        let url =
            format!("http://{}", listener.local_addr().expect("a bound socket has an address"));
        let database = dynoxide::Database::memory().expect("a database in memory");
        let stop = CancellationToken::new();
        // Its router is private, so it cannot be served by our own `Server`.
        let stopped = stop.clone().cancelled_owned();
        tokio::spawn(dynoxide::server::serve_with_shutdown(listener, database, stopped));
        let client = client::dynamo(&url);
        Self { url, client, _stop: stop.drop_guard() }
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// A client for the service itself.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Creates a lease table: one string hash key, [`KEY`].
    ///
    /// # Panics
    /// If the service refuses.
    pub async fn create_lease_table(&self, table: &str) {
        self.create_table(table, KEY, None).await;
    }

    /// Creates a table with any string hash key and, if given, a string sort key: for what a user gets wrong.
    ///
    /// # Panics
    /// If the service refuses.
    pub async fn create_table(&self, table: &str, hash: &str, sort: Option<&str>) {
        let mut request =
            self.client.create_table().table_name(table).billing_mode(BillingMode::PayPerRequest);
        for (name, kind) in [(Some(hash), KeyType::Hash), (sort, KeyType::Range)] {
            let Some(name) = name else { continue };
            let definition = AttributeDefinition::builder().attribute_name(name);
            let definition =
                definition.attribute_type(ScalarAttributeType::S).build().expect("a definition");
            let key = KeySchemaElement::builder()
                .attribute_name(name)
                .key_type(kind)
                .build()
                .expect("a key");
            request = request.attribute_definitions(definition).key_schema(key);
        }
        request.send().await.expect("create the table");
    }

    /// Every row by its key.
    ///
    /// # Panics
    /// If there is no such table.
    pub async fn rows(&self, table: &str) -> BTreeMap<String, Row> {
        let scan = self
            .client
            .scan()
            .table_name(table)
            .consistent_read(true)
            .into_paginator()
            .items()
            .send();
        let rows = scan.collect::<Result<Vec<Row>, _>>().await.expect("scan the table");
        let keyed = |row: Row| {
            let key = row[KEY].as_s().expect("a string key").clone();
            (key, row)
        };
        rows.into_iter().map(keyed).collect()
    }

    /// One row.
    ///
    /// # Panics
    /// If there is no such table.
    pub async fn row(&self, table: &str, key: &str) -> Option<Row> {
        let request = self.client.get_item().table_name(table).consistent_read(true);
        request.key(KEY, AttributeValue::S(key.to_owned())).send().await.expect("read the row").item
    }

    /// Writes a whole row under `key`, whatever was there.
    ///
    /// # Panics
    /// If there is no such table.
    pub async fn put_row(&self, table: &str, key: &str, mut row: Row) {
        row.insert(KEY.to_owned(), AttributeValue::S(key.to_owned()));
        let request = self.client.put_item().table_name(table).set_item(Some(row));
        request.send().await.expect("write the row");
    }

    /// Deletes a row; one that is not there is fine.
    ///
    /// # Panics
    /// If there is no such table.
    pub async fn delete_row(&self, table: &str, key: &str) {
        let request = self.client.delete_item().table_name(table);
        request.key(KEY, AttributeValue::S(key.to_owned())).send().await.expect("delete the row");
    }
}
