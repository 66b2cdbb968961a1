//! A small SMTP server that keeps received messages and sends the replies that a test configures.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use openssl::ssl::SslAcceptor;
use tokio::io::{self, AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::certificate::accept;

/// A received message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mail {
    /// The sender of the envelope.
    pub from: String,
    /// The recipients of the envelope.
    pub to: Vec<String>,
    /// The client's login, as sent.
    pub login: Option<String>,
    /// Whether it arrived over TLS.
    pub is_encrypted: bool,
    /// Its headers and body.
    pub text: String,
}

/// The events on all connections.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// The received messages.
    pub mails: Vec<Mail>,
    /// The number of connections.
    pub connections: usize,
    /// Commands after the greeting, without arguments.
    pub commands: Vec<String>,
}

/// The server's behaviour.
#[derive(Default)]
struct Behavior {
    /// The answers to each recipient, in order; then `250 ok`.
    to: Mutex<HashMap<String, Vec<&'static str>>>,
    /// Whether logins are refused.
    refuses_login: bool,
    /// TLS from the start.
    tls: Option<SslAcceptor>,
    /// TLS on request.
    starttls: Option<SslAcceptor>,
}

/// The server.
pub struct SmtpServer {
    /// Its address.
    pub address: SocketAddr,
    seen: watch::Receiver<Seen>,
    server: JoinHandle<()>,
}

impl SmtpServer {
    /// A server that accepts every message.
    pub async fn start() -> Self {
        Self::with(Behavior::default()).await
    }

    /// A server with these replies to recipients, in order; then `250 ok`.
    pub async fn that_answers<const N: usize>(to: [(&str, Vec<&'static str>); N]) -> Self {
        let to = to.map(|(address, all)| (address.to_owned(), all));
        Self::with(Behavior {
            to: Mutex::new(to.into()),
            ..Behavior::default()
        })
        .await
    }

    /// A server that refuses every login.
    pub async fn that_refuses_logins() -> Self {
        Self::with(Behavior {
            refuses_login: true,
            ..Behavior::default()
        })
        .await
    }

    /// A server that speaks TLS from the first byte.
    pub async fn with_tls(acceptor: SslAcceptor) -> Self {
        Self::with(Behavior {
            tls: Some(acceptor),
            ..Behavior::default()
        })
        .await
    }

    /// A server that changes to TLS when its client asks for it.
    pub async fn with_starttls(acceptor: SslAcceptor) -> Self {
        Self::with(Behavior {
            starttls: Some(acceptor),
            ..Behavior::default()
        })
        .await
    }

    async fn with(behavior: Behavior) -> Self {
        let behavior = Arc::new(behavior);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, seen) = watch::channel(Seen::default());
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                sender.send_modify(|seen| seen.connections += 1);
                let session = Session {
                    seen: sender.clone(),
                    behavior: behavior.clone(),
                    is_encrypted: false,
                    login: None,
                };
                // A client that disconnects ends its session.
                tokio::spawn(async move { session.run(stream).await.ok() });
            }
        });
        Self {
            address,
            seen,
            server,
        }
    }

    /// The events, once there are `count` messages.
    pub async fn mails(&self, count: usize) -> Vec<Mail> {
        let mut seen = self.seen.clone();
        let seen = seen.wait_for(|seen| seen.mails.len() >= count).await;
        seen.unwrap().mails.clone()
    }

    /// The events until now.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }
}

impl Drop for SmtpServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection.
struct Session {
    seen: watch::Sender<Seen>,
    behavior: Arc<Behavior>,
    is_encrypted: bool,
    login: Option<String>,
}

impl Session {
    async fn run(mut self, stream: TcpStream) -> io::Result<()> {
        let mut stream: Box<dyn Stream> = Box::new(stream);
        if let Some(acceptor) = self.behavior.tls.clone() {
            stream = self.encrypt(stream, &acceptor).await?;
        }
        stream.write_all(b"220 test\r\n").await?;
        while let Some(acceptor) = self.talk(&mut stream).await? {
            stream.write_all(b"220 go on\r\n").await?;
            stream = self.encrypt(stream, &acceptor).await?;
        }
        Ok(())
    }

    async fn encrypt(
        &mut self,
        stream: Box<dyn Stream>,
        acceptor: &SslAcceptor,
    ) -> io::Result<Box<dyn Stream>> {
        let stream = accept(acceptor, stream).await?;
        self.is_encrypted = true;
        Ok(Box::new(stream))
    }

    /// Serves commands until the client disconnects or requests TLS.
    async fn talk(&mut self, stream: &mut Box<dyn Stream>) -> io::Result<Option<SslAcceptor>> {
        let mut stream = BufReader::new(stream);
        let (mut from, mut to) = (String::new(), Vec::new());
        while let Some(line) = next_line(&mut stream).await? {
            let (command, argument) = line.split_once(' ').unwrap_or((&line, ""));
            self.seen
                .send_modify(|seen| seen.commands.push(command.to_owned()));
            let reply = match command {
                "EHLO" if self.behavior.starttls.is_some() && !self.is_encrypted => {
                    "250-test\r\n250 STARTTLS"
                }
                "EHLO" => "250-test\r\n250-8BITMIME\r\n250 AUTH PLAIN",
                "STARTTLS" => return Ok(self.behavior.starttls.clone()),
                "AUTH" if self.behavior.refuses_login => "535 wrong password",
                "AUTH" => {
                    self.login = Some(argument.to_owned());
                    "235 welcome"
                }
                "MAIL" => {
                    from = address_in(argument);
                    "250 ok"
                }
                "RCPT" => {
                    let address = address_in(argument);
                    let mut replies = self.behavior.to.lock().unwrap();
                    let replies = replies.get_mut(&address);
                    to.push(address);
                    match replies {
                        Some(replies) if !replies.is_empty() => replies.remove(0),
                        _ => "250 ok",
                    }
                }
                "DATA" => {
                    stream.write_all(b"354 go on\r\n").await?;
                    let mail = Mail {
                        from: from.clone(),
                        to: std::mem::take(&mut to),
                        login: self.login.clone(),
                        is_encrypted: self.is_encrypted,
                        text: read_text(&mut stream).await?,
                    };
                    self.seen.send_modify(|seen| seen.mails.push(mail));
                    "250 queued"
                }
                "QUIT" => {
                    stream.write_all(b"221 bye\r\n").await?;
                    return Ok(None);
                }
                _ => "502 what?",
            };
            stream.write_all(format!("{reply}\r\n").as_bytes()).await?;
        }
        Ok(None)
    }
}

/// Reads a message up to the line with a single dot.
async fn read_text<S: Stream>(stream: &mut BufReader<S>) -> io::Result<String> {
    let mut text = String::new();
    while let Some(line) = next_line(stream).await?
        && line != "."
    {
        text.push_str(line.strip_prefix('.').unwrap_or(&line));
        text.push('\n');
    }
    Ok(text)
}

/// The next line without its line ending; `None` if the client disconnected.
async fn next_line<S: Stream>(stream: &mut BufReader<S>) -> io::Result<Option<String>> {
    let mut line = String::new();
    let length = stream.read_line(&mut line).await?;
    Ok((length > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned()))
}

/// The address in angle brackets.
fn address_in(argument: &str) -> String {
    let (_, rest) = argument.split_once('<').expect("an address");
    rest.split_once('>').expect("an address").0.to_owned()
}
