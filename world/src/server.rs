//! One way to listen for every stand-in: HTTP/1.1 on loopback, gone when dropped.
//!
//! `axum::serve` is not used: it cannot close a connection without a reply, which is what the fault
//! proxy is for, and its connections outlive it. Here a service that returns an error closes its
//! connection, and dropping the [`Server`] cuts every connection, as a stopped host would.

use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

type BoxError = Box<dyn Error + Send + Sync>;

/// Binds `port` on loopback, or any free one.
pub(crate) async fn listen(port: Option<u16>) -> TcpListener {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap_or(0)));
    TcpListener::bind(address)
        .await
        .unwrap_or_else(|error| panic!("cannot listen on {address}: {error}"))
}

/// A listener with its connections.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
    silence: watch::Sender<()>,
}

impl Server {
    /// Serves an axum router.
    pub(crate) async fn router(port: Option<u16>, router: Router) -> Self {
        let service = TowerToHyperService::new(router);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let reply = service.call(request);
            async move { Ok::<_, Infallible>(reply.await.unwrap_or_else(|never| match never {})) }
        });
        Self::start(port, service).await
    }

    /// Serves any hyper service; one that returns an error closes the connection without a reply.
    pub(crate) async fn start<S, B>(port: Option<u16>, service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let listener = listen(port).await;
        let address = listener.local_addr().expect("a bound socket has an address");
        let silence = watch::Sender::default();
        let task = tokio::spawn(accept(listener, service, silence.subscribe()));
        Self { address, task, silence }
    }

    /// Whatever is sent on a connection that is open now gets no answer any more, nor is it closed.
    pub(crate) fn silence(&self) {
        self.silence.send_replace(());
    }

    /// `127.0.0.1:port`.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:port`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept<S, B>(listener: TcpListener, service: S, silence: watch::Receiver<()>)
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    // Owned by this task, so aborting it closes the connections too.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    let connection = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service.clone());
                    let mut silence = silence.clone();
                    silence.mark_unchanged();
                    connections.spawn(async move {
                        let mut connection = pin!(connection);
                        tokio::select! {
                            // An error is either injected or a client that went: both are normal here.
                            _ = &mut connection => {}
                            // Open, and nobody there.
                            Ok(()) = silence.changed() => pending().await,
                        }
                    });
                }
                // Out of file descriptors, say: the next accept would fail at once as well.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
