//! Connections that nobody answers on any more.
//!
//! A function that was frozen wakes with connections that are open for all that it knows, and that the
//! other end, or what lies between, has long forgotten: a NAT gateway drops what was idle for 350 s (VPC
//! guide, "NAT gateway basics"). A packet that is answered by nothing looks like a slow service: the call
//! waits for its whole timeout, and the pool has the next dead connection ready for the one after it.
//!
//! So a pool of connections is given up as a whole where it is not to be trusted: when nothing was
//! answered for a while, by the clock that has moved further, and when a call was given up that waited for
//! an answer in vain. Calls on their way keep their connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_smithy_http_client::{Builder, ConnectorBuilder};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;

use crate::time::{Moment, SharedClock};

/// A run speaks every 3 s: after so long without an answer, the process was frozen or had nothing to do.
const IDLE: Duration = Duration::from_secs(20);

/// A call that was given up after it waited for so long casts doubt on all connections of its pool. Less
/// than the shortest timeout of a call.
const IN_VAIN: Duration = Duration::from_millis(900);

/// The HTTP client of the SDK with its own defaults, but for what this module is about.
pub(crate) fn http_client(clock: SharedClock) -> SharedHttpClient {
    SharedHttpClient::new(Pools::new(clock, || {
        Builder::new().build_with_connector_fn(|settings, components| {
            let mut connector = ConnectorBuilder::default()
                .tls_provider(Provider::Rustls(CryptoMode::AwsLc))
                .proxy_config(ProxyConfig::from_env());
            connector.set_connector_settings(settings.cloned());
            connector.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
            connector.build()
        })
    }))
}

type Make = dyn Fn() -> SharedHttpClient + Send + Sync;

/// One pool of connections after another.
struct Pools(Arc<Shared>);

struct Shared {
    clock: SharedClock,
    make: Box<Make>,
    current: Mutex<Pool>,
}

/// A client with its connections.
struct Pool {
    number: u64,
    client: SharedHttpClient,
    /// When something was last answered; before that, when the pool was made.
    good_at: Moment,
}

impl Pools {
    fn new(
        clock: SharedClock,
        make: impl Fn() -> SharedHttpClient + Send + Sync + 'static,
    ) -> Self {
        let pool = Pool { number: 0, client: make(), good_at: Moment::now(&*clock) };
        Self(Arc::new(Shared { clock, make: Box::new(make), current: Mutex::new(pool) }))
    }
}

impl std::fmt::Debug for Pools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pools").field("number", &self.0.current().number).finish()
    }
}

impl Shared {
    fn current(&self) -> MutexGuard<'_, Pool> {
        // Nothing that is done under the lock can leave a pool half made.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew(&self, pool: &mut Pool) {
        let (number, client) = (pool.number + 1, (self.make)());
        *pool = Pool { number, client, good_at: Moment::now(&*self.clock) };
        tracing::debug!(number, "connections that may be dead are not used any more");
    }

    fn answered(&self, number: u64) {
        let mut pool = self.current();
        if pool.number == number {
            pool.good_at = Moment::now(&*self.clock);
        }
    }

    fn gave_up(&self, number: u64) {
        let mut pool = self.current();
        if pool.number == number {
            self.renew(&mut pool);
        }
    }
}

impl HttpClient for Pools {
    /// Asked for by the SDK before each try of a call.
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let (number, client) = {
            let mut pool = self.0.current();
            if pool.good_at.elapsed(&*self.0.clock) > IDLE {
                self.0.renew(&mut pool);
            }
            (pool.number, pool.client.clone())
        };
        let connector = client.http_connector(settings, components);
        SharedHttpConnector::new(Watched { shared: self.0.clone(), number, connector })
    }
}

/// A way into one pool.
struct Watched {
    shared: Arc<Shared>,
    number: u64,
    connector: SharedHttpConnector,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("number", &self.number).finish()
    }
}

impl HttpConnector for Watched {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let sent = Moment::now(&*self.shared.clock);
        let waiting =
            Waiting { shared: self.shared.clone(), number: self.number, sent, done: false };
        let reply = self.connector.call(request);
        HttpConnectorFuture::new(async move {
            let mut waiting = waiting;
            let reply = reply.await;
            waiting.done = true;
            if reply.is_ok() {
                waiting.shared.answered(waiting.number);
            }
            reply
        })
    }
}

/// A call without an answer so far. The SDK drops it when its time is over.
struct Waiting {
    shared: Arc<Shared>,
    number: u64,
    sent: Moment,
    done: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.done && self.sent.elapsed(&*self.shared.clock) >= IN_VAIN {
            self.shared.gave_up(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use aws_smithy_runtime_api::client::http::http_client_fn;
    use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
    use aws_smithy_runtime_api::client::runtime_components::RuntimeComponentsBuilder;
    use aws_smithy_runtime_api::http::StatusCode;
    use aws_smithy_types::body::SdkBody;
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::time::{TestClock, Timestamp};

    /// Answers, or does not: by the path of the request.
    #[derive(Debug)]
    struct Service;

    impl HttpConnector for Service {
        fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
            let answers = !request.uri().ends_with("silence");
            HttpConnectorFuture::new(async move {
                if !answers {
                    std::future::pending::<()>().await;
                }
                let status = StatusCode::try_from(200).unwrap();
                Ok(HttpResponse::new(status, SdkBody::empty()))
            })
        }
    }

    struct Scene {
        clock: Arc<TestClock>,
        pools: Pools,
        made: Arc<AtomicUsize>,
    }

    impl Scene {
        fn new() -> Self {
            let clock = TestClock::starting_at(Timestamp::from_secs(1_800_000_000));
            let made = Arc::new(AtomicUsize::new(0));
            let counted = made.clone();
            let pools = Pools::new(clock.clone(), move || {
                counted.fetch_add(1, Ordering::SeqCst);
                http_client_fn(|_, _| SharedHttpConnector::new(Service))
            });
            Self { clock, pools, made }
        }

        /// A way to the service, as the SDK asks for one before each try.
        fn connector(&self) -> SharedHttpConnector {
            let settings = HttpConnectorSettings::builder().build();
            let components = RuntimeComponentsBuilder::for_tests().build().unwrap();
            self.pools.http_connector(&settings, &components)
        }

        async fn call(&self, path: &str, patience: Duration) {
            call(&self.connector(), path, patience).await;
        }

        fn made(&self) -> usize {
            self.made.load(Ordering::SeqCst)
        }
    }

    async fn call(connector: &SharedHttpConnector, path: &str, patience: Duration) {
        let mut request = HttpRequest::empty();
        request.set_uri(format!("http://service/{path}")).unwrap();
        let _ = timeout(patience, connector.call(request)).await;
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn connections_are_kept_while_calls_are_answered() {
        let scene = Scene::new();
        for _ in 0..100 {
            scene.call("good", SECOND).await;
            advance(IDLE).await;
        }
        assert_eq!(scene.made(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_were_idle_are_not_used_whichever_clock_tells_so() {
        let scene = Scene::new();
        scene.call("good", SECOND).await;
        advance(IDLE + SECOND).await;
        scene.call("good", SECOND).await;
        assert_eq!(scene.made(), 2, "by both clocks");
        scene.clock.skew(25_000);
        scene.call("good", SECOND).await;
        assert_eq!(scene.made(), 3, "the monotonic clock stood still");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_in_vain_spoils_its_pool_once() {
        let scene = Scene::new();
        let (one, other) = (scene.connector(), scene.connector());
        call(&one, "silence", SECOND).await;
        assert_eq!(scene.made(), 2);
        call(&other, "silence", SECOND).await;
        assert_eq!(scene.made(), 2, "the other one was sent by the old pool");
        scene.call("silence", SECOND).await;
        assert_eq!(scene.made(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_cancelled_at_once_spoils_nothing() {
        let scene = Scene::new();
        scene.call("silence", Duration::from_millis(100)).await;
        assert_eq!(scene.made(), 1);
    }
}
