//! A connection, encrypted or not: one type, so that the code that serves it is compiled once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// An unencrypted connection.
    Plain(TcpStream),
    /// A TLS connection.
    Tls(Box<SslStream<TcpStream>>),
}

macro_rules! on_either {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            Stream::Plain($inner) => {
                let $inner = Pin::new($inner);
                $call
            }
            Stream::Tls($inner) => {
                let $inner = Pin::new(&mut **$inner);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        on_either!(self, inner => inner.poll_read(cx, into))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        on_either!(self, inner => inner.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_either!(self, inner => inner.poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        matches!(self, Self::Plain(socket) if socket.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_either!(self, inner => inner.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_either!(self, inner => inner.poll_shutdown(cx))
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Self::Tls(stream) if stream.ssl().selected_alpn_protocol() == Some(b"h2") => {
                Connected::new().negotiated_h2()
            }
            Self::Tls(_) | Self::Plain(_) => Connected::new(),
        }
    }
}
