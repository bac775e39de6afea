//! The handshake between the two ends of a memif, sans-IO: messages and descriptors in, messages out; no socket, no clock, no mapping.
//!
//! The server sends HELLO. The client sends INIT, ADD_REGION, ADD_RING for each ring, and CONNECT. The server acknowledges each message; it
//! answers CONNECT with CONNECTED. The peer is not trusted: a message that is out of order or out of range, or carries the wrong number of
//! descriptors, ends the handshake with an error message. So each end accepts a bounded number of messages.
//!
//! `Fd` is the type of descriptors. Descriptors that are refused are dropped.

use super::message::{AddRing, Hello, Init, Message, SECRET, VERSION};
use super::ring;

/// What this end requires of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Rings in each direction.
    pub queues: usize,
    /// Base-2 logarithm of a ring's slots. A server accepts the client's value instead.
    pub log2: u8,
    /// Number of the interface at the server.
    pub id: u32,
    /// The secret; zeros if none.
    pub secret: [u8; SECRET],
}

/// The name of this program in messages.
const NAME: &str = "roce";

/// A client's offer, complete and in bounds. Its memory is not checked yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Offer<Fd> {
    /// Its memory.
    pub region: Fd,
    /// Bytes of the memory.
    pub size: u64,
    /// Rings from client to server, by number.
    pub to_server: Vec<RingOffer<Fd>>,
    /// Rings from server to client, by number.
    pub to_client: Vec<RingOffer<Fd>>,
}

/// A ring of an offer.
#[derive(Debug, PartialEq, Eq)]
pub struct RingOffer<Fd> {
    /// Offset of its first byte in the memory.
    pub offset: u32,
    /// Base-2 logarithm of its slots.
    pub log2: u8,
    /// The eventfd that wakes the receiver.
    pub event: Fd,
}

/// The action of a server after a message.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerStep<Fd> {
    /// Send this message.
    Answer(Message),
    /// Map this memory, then send [`connected`].
    Connect(Offer<Fd>),
}

/// A server's end of a handshake.
#[derive(Debug)]
pub struct Server<Fd> {
    terms: Terms,
    /// INIT was received.
    known: bool,
    region: Option<(Fd, u64)>,
    /// Rings from client to server, and from server to client.
    rings: [Vec<Option<RingOffer<Fd>>>; 2],
}

/// The last message of a server.
pub fn connected() -> Message {
    Message::Connected { name: NAME.into() }
}

/// A message after the handshake ends the connection. Returns the reason, and whether the protocol permits the message.
pub fn after_handshake(bytes: &[u8]) -> (String, bool) {
    match Message::decode(bytes) {
        Ok(Message::Disconnect { why }) => (left(&why), true),
        Ok(message) => (unexpected(&message), false),
        Err(sentence) => (sentence, false),
    }
}

fn left(why: &str) -> String {
    format!("the peer disconnected: {why:?}")
}

fn unexpected(message: &Message) -> String {
    format!("{} came when it should not", message.kind())
}

/// Returns the descriptor of a message that must carry exactly one.
fn one<Fd>(fds: Vec<Fd>, kind: &str) -> Result<Fd, String> {
    let n = fds.len();
    match <[Fd; 1]>::try_from(fds) {
        Ok([fd]) => Ok(fd),
        Err(_) => Err(format!("{kind} brings {n} descriptors, where it should bring one")),
    }
}

impl<Fd> Server<Fd> {
    /// Begins a handshake. The first message to send is [`hello`](Self::hello).
    pub fn new(terms: &Terms) -> Self {
        let rings = || (0..terms.queues).map(|_| None).collect();
        Self { terms: terms.clone(), known: false, region: None, rings: [rings(), rings()] }
    }

    /// The first message of a server.
    pub fn hello(&self) -> Message {
        let most = (self.terms.queues - 1) as u16;
        Message::Hello(Hello {
            name: NAME.into(),
            versions: VERSION..=VERSION,
            region_max: 0,
            to_client_max: most,
            to_server_max: most,
            log2_max: ring::LOG2_MAX,
        })
    }

    /// Handles a message from the client, with the descriptors that it carried. `taken`: the server has a client already.
    ///
    /// # Errors
    /// Why the client is refused.
    pub fn handle(&mut self, bytes: &[u8], fds: Vec<Fd>, taken: bool) -> Result<ServerStep<Fd>, String> {
        let message = Message::decode(bytes)?;
        if !matches!(message, Message::AddRegion { .. } | Message::AddRing(_)) && !fds.is_empty() {
            return Err(format!(
                "{} brings {} descriptors, where it should bring none",
                message.kind(),
                fds.len()
            ));
        }
        match message {
            Message::Init(init) if !self.known => self.init(&init, taken)?,
            Message::AddRegion { index, size } if self.known => {
                self.add_region(index, size, one(fds, "ADD_REGION")?)?
            }
            Message::AddRing(ring) if self.known => self.add_ring(ring, one(fds, "ADD_RING")?)?,
            Message::Connect { .. } if self.known => return self.connect(taken).map(ServerStep::Connect),
            Message::Disconnect { why } => return Err(left(&why)),
            other => return Err(unexpected(&other)),
        }
        Ok(ServerStep::Answer(Message::Ack))
    }

    fn init(&mut self, init: &Init, taken: bool) -> Result<(), String> {
        if init.version != VERSION {
            return Err(format!("memif version {:#x} is not spoken here: {VERSION:#x} is", init.version));
        }
        if !init.is_ethernet() {
            return Err("frames are Ethernet here, and nothing else".into());
        }
        if init.id != self.terms.id {
            return Err(format!("interface {} is not here: {} is", init.id, self.terms.id));
        }
        if self.terms.secret != [0; SECRET] && init.secret != self.terms.secret {
            return Err("the secret is missing, or another one".into());
        }
        if taken {
            return Err(TAKEN.into());
        }
        self.known = true;
        Ok(())
    }

    fn add_region(&mut self, index: u16, size: u64, fd: Fd) -> Result<(), String> {
        if index != 0 || self.region.is_some() {
            return Err("one region is taken, number 0: do without zero copy".into());
        }
        self.region = Some((fd, size));
        Ok(())
    }

    fn add_ring(&mut self, ring: AddRing, event: Fd) -> Result<(), String> {
        let AddRing { to_server, index, region, offset, log2, private_header } = ring;
        let name = if to_server { "client-to-server" } else { "server-to-client" };
        let Some((_, size)) = self.region.as_ref().filter(|_| region == 0) else {
            return Err(format!("{name} ring {index} is in region {region}, which is not here"));
        };
        ring::check(*size, offset, log2).map_err(|reason| format!("{name} ring {index} {reason}"))?;
        if private_header != 0 {
            return Err(format!("{name} ring {index} has private headers, which are not spoken here"));
        }
        match self.rings[usize::from(!to_server)].get_mut(usize::from(index)) {
            Some(place @ None) => *place = Some(RingOffer { offset, log2, event }),
            Some(Some(_)) => return Err(format!("{name} ring {index} is there twice")),
            None => {
                return Err(format!(
                    "{name} ring {index} is one too many: there are {} queues",
                    self.terms.queues
                ));
            }
        }
        Ok(())
    }

    fn connect(&mut self, taken: bool) -> Result<Offer<Fd>, String> {
        let Some((region, size)) = self.region.take() else {
            return Err("CONNECT came before a region".into());
        };
        let [to_server, to_client] = core::mem::take(&mut self.rings).map(|rings| {
            let offered: Vec<_> = rings.into_iter().flatten().collect();
            match offered.len() == self.terms.queues {
                true => Ok(offered),
                false => Err(queues(offered.len(), self.terms.queues)),
            }
        });
        let (to_server, to_client) = (to_server?, to_client?);
        if taken {
            return Err(TAKEN.into());
        }
        Ok(Offer { region, size, to_server, to_client })
    }
}

/// Why a client is refused while there is another one.
pub const TAKEN: &str = "another client is connected already";

fn queues(theirs: usize, ours: usize) -> String {
    format!("the peer has {theirs} queues, this end {ours}: use as many at both ends")
}

/// The action of a client after a message.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientStep {
    /// Create the memory, with rings of 2 to the power of this many slots, and send [`Client::offer`].
    Offer(u8),
    /// Wait for the next message.
    Wait,
    /// Use the rings.
    Connected,
}

/// The descriptor that a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// Nothing.
    Nothing,
    /// The region's descriptor.
    Region,
    /// The eventfd of a ring: whether the ring leads from client to server, and its number.
    Event(bool, usize),
}

/// A client's end of a handshake.
#[derive(Debug)]
pub struct Client {
    terms: Terms,
    /// HELLO was received.
    known: bool,
    /// Acknowledgements still missing, once the offer was made.
    missing: Option<usize>,
}

impl Client {
    /// Begins a handshake. The server sends first.
    pub fn new(terms: &Terms) -> Self {
        Self { terms: terms.clone(), known: false, missing: None }
    }

    /// Handles a message from the server. `fds`: how many descriptors it carried.
    ///
    /// # Errors
    /// Why the server is refused.
    pub fn handle(&mut self, bytes: &[u8], fds: usize) -> Result<ClientStep, String> {
        let message = Message::decode(bytes)?;
        if fds != 0 {
            return Err(format!("{} brings {fds} descriptors, where it should bring none", message.kind()));
        }
        match (message, &mut self.missing) {
            (Message::Hello(hello), _) if !self.known => {
                self.known = true;
                self.hello(&hello).map(ClientStep::Offer)
            }
            (Message::Ack, Some(missing @ 1..)) => {
                *missing -= 1;
                Ok(ClientStep::Wait)
            }
            (Message::Connected { .. }, Some(0)) => Ok(ClientStep::Connected),
            (Message::Disconnect { why }, _) => Err(left(&why)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    fn hello(&self, hello: &Hello) -> Result<u8, String> {
        if !hello.versions.contains(&VERSION) {
            return Err(format!(
                "the server speaks the memif versions {:#x?}, not {VERSION:#x}",
                hello.versions
            ));
        }
        let most = usize::from(hello.to_client_max.min(hello.to_server_max)) + 1;
        if most < self.terms.queues {
            return Err(queues(most, self.terms.queues));
        }
        match hello.log2_max.min(self.terms.log2) {
            0 => Err("the server has rings of one slot, where two are the least".into()),
            log2 => Ok(log2),
        }
    }

    /// All messages of a client, in order. `offset` returns where a ring begins, given whether it leads from client to server, and its
    /// number.
    pub fn offer(
        &mut self,
        size: u64,
        log2: u8,
        offset: impl Fn(bool, usize) -> u32,
    ) -> Vec<(Message, Along)> {
        let init = Init::new(self.terms.id, self.terms.secret, NAME);
        let mut all = vec![
            (Message::Init(init), Along::Nothing),
            (Message::AddRegion { index: 0, size }, Along::Region),
        ];
        for to_server in [true, false] {
            for index in 0..self.terms.queues {
                let ring = AddRing {
                    to_server,
                    index: index as u16,
                    region: 0,
                    offset: offset(to_server, index),
                    log2,
                    private_header: 0,
                };
                all.push((Message::AddRing(ring), Along::Event(to_server, index)));
            }
        }
        self.missing = Some(all.len());
        all.push((Message::Connect { name: NAME.into() }, Along::Nothing));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(queues: usize) -> Terms {
        Terms { queues, log2: 4, id: 3, secret: [0; SECRET] }
    }

    const SIZE: u64 = 1 << 20;

    /// The messages of a well-behaved client with two queues, and their descriptors.
    fn script(terms: &Terms) -> Vec<(Message, Vec<i32>)> {
        let mut client = Client::new(terms);
        let hello = Server::<i32>::new(terms).hello();
        assert_eq!(client.handle(&hello.encode(), 0), Ok(ClientStep::Offer(4)));
        let offset = |to_server: bool, index: usize| ((2 * index + usize::from(!to_server)) * 1024) as u32;
        let fds = |along| match along {
            Along::Nothing => vec![],
            Along::Region => vec![100],
            Along::Event(to_server, index) => vec![2 * index as i32 + i32::from(!to_server)],
        };
        client.offer(SIZE, 4, offset).into_iter().map(|(message, along)| (message, fds(along))).collect()
    }

    fn serve(terms: &Terms, script: &[(Message, Vec<i32>)]) -> Result<Offer<i32>, String> {
        let mut server = Server::new(terms);
        for (message, fds) in script {
            match server.handle(&message.encode(), fds.clone(), false)? {
                ServerStep::Answer(answer) => assert_eq!(answer, Message::Ack),
                ServerStep::Connect(offer) => return Ok(offer),
            }
        }
        Err("no CONNECT".into())
    }

    #[test]
    fn ends_come_to_terms() {
        let terms = terms(2);
        let offer = serve(&terms, &script(&terms)).unwrap();
        let ring = |offset, event| RingOffer { offset, log2: 4, event };
        assert_eq!((offer.region, offer.size), (100, SIZE));
        assert_eq!(offer.to_server, [ring(0, 0), ring(2048, 2)]);
        assert_eq!(offer.to_client, [ring(1024, 1), ring(3072, 3)]);

        let mut client = Client::new(&terms);
        client.handle(&Server::<i32>::new(&terms).hello().encode(), 0).unwrap();
        let all = client.offer(SIZE, 4, |_, _| 0).len();
        for _ in 0..all - 1 {
            assert_eq!(client.handle(&Message::Ack.encode(), 0), Ok(ClientStep::Wait));
        }
        assert_eq!(client.handle(&connected().encode(), 0), Ok(ClientStep::Connected));
    }

    #[test]
    fn a_server_takes_messages_in_their_order_only() {
        // Goal: if any message is left out, repeated or swapped with another, or carries another number of descriptors, the server returns
        // an error, and never an incomplete offer.
        let terms = terms(2);
        let good = script(&terms);
        // Only the messages that add rings may come in any order.
        let is_ring = |i: usize| matches!(good[i].0, Message::AddRing(_));
        for i in 0..good.len() {
            let mut without = good.clone();
            without.remove(i);
            assert!(serve(&terms, &without).is_err(), "without {i}");
            let mut twice = good.clone();
            twice.insert(i, good[i].clone());
            // The handshake is over with the first CONNECT.
            assert_eq!(serve(&terms, &twice).is_err(), i + 1 < good.len(), "{i} twice");
            for j in 0..i {
                let mut exchanged = good.clone();
                exchanged.swap(i, j);
                assert_eq!(
                    serve(&terms, &exchanged).is_err(),
                    !(is_ring(i) && is_ring(j)),
                    "{i} and {j} exchanged"
                );
            }
            let mut fds = good.clone();
            fds[i].1.push(7);
            let error = serve(&terms, &fds).unwrap_err();
            assert!(error.contains("descriptors, where it should"), "{i}: {error}");
            if !good[i].1.is_empty() {
                let mut none = good.clone();
                none[i].1.clear();
                assert!(serve(&terms, &none).unwrap_err().contains("brings 0 descriptors"), "{i}");
            }
            for stray in [Message::Ack, connected(), Server::<i32>::new(&terms).hello()] {
                let mut with = good.clone();
                with.insert(i, (stray.clone(), vec![]));
                let error = serve(&terms, &with).unwrap_err();
                assert_eq!(error, unexpected(&stray));
            }
            let mut left = good.clone();
            left.insert(i, (Message::Disconnect { why: "no more".into() }, vec![]));
            assert_eq!(serve(&terms, &left).unwrap_err(), "the peer disconnected: \"no more\"");
        }
    }

    #[test]
    fn a_server_says_what_it_does_not_take() {
        let terms = Terms { secret: *b"the secret of this test!", ..terms(2) };
        let good = script(&terms);
        let with = |change: &dyn Fn(&mut Message)| {
            let mut script = good.clone();
            script.iter_mut().for_each(|(message, _)| change(message));
            serve(&terms, &script).unwrap_err()
        };
        let init = |change: fn(&mut Init)| {
            with(&|message| {
                if let Message::Init(init) = message {
                    change(init);
                }
            })
        };
        let ring = |change: fn(&mut AddRing)| {
            with(&|message| {
                if let Message::AddRing(ring) = message {
                    change(ring);
                }
            })
        };
        assert!(init(|init| init.version = 0x300).contains("0x300 is not spoken"));
        assert!(init(|init| init.id = 4).contains("interface 4 is not here: 3 is"));
        assert!(init(|init| init.mode = 1).contains("Ethernet"));
        assert!(init(|init| init.secret[23] = 0).contains("secret"));
        assert!(ring(|ring| ring.region = 60000).contains("region 60000"));
        assert!(ring(|ring| ring.index += 2).contains("one too many: there are 2 queues"));
        assert!(ring(|ring| ring.index = 0).contains("there twice"));
        assert!(ring(|ring| ring.log2 = 0).contains("2^0"));
        assert!(ring(|ring| ring.log2 = 15).contains("2^15"));
        assert!(ring(|ring| ring.log2 = 255).contains("2^255"));
        assert!(ring(|ring| ring.offset = 0xffff_f000).contains("ends behind its region"));
        assert!(ring(|ring| ring.offset += 4).contains("multiple of 8"));
        assert!(ring(|ring| ring.private_header = 8).contains("private headers"));
        let two = with(&|message| {
            if let Message::AddRegion { index, .. } = message {
                *index = 1;
            }
        });
        assert!(two.contains("one region"), "{two}");
        let few = with(&|message| {
            if let Message::AddRegion { size, .. } = message {
                *size = 100;
            }
        });
        assert!(few.contains("ends behind its region"), "{few}");

        let mut server = Server::new(&terms);
        let error = server.handle(&good[0].0.encode(), good[0].1.clone(), true).unwrap_err();
        assert_eq!(error, TAKEN);
        let one = Terms { queues: 1, ..terms.clone() };
        let error = serve(&terms, &script(&one)).unwrap_err();
        assert!(error.contains("the peer has 1 queues, this end 2"), "{error}");
    }

    #[test]
    fn a_client_says_what_it_does_not_take() {
        let terms = terms(2);
        let Message::Hello(good) = Server::<i32>::new(&terms).hello() else { panic!() };
        let greet = |hello: Hello| Client::new(&terms).handle(&Message::Hello(hello).encode(), 0);
        assert_eq!(greet(Hello { log2_max: 3, ..good.clone() }), Ok(ClientStep::Offer(3)));
        let no = |hello| greet(hello).unwrap_err();
        assert!(no(Hello { versions: 0x201..=0x300, ..good.clone() }).contains("not 0x200"));
        assert!(no(Hello { to_server_max: 0, ..good.clone() }).contains("the peer has 1 queues"));
        assert!(no(Hello { to_client_max: 0, ..good.clone() }).contains("this end 2"));
        assert!(no(Hello { log2_max: 0, ..good.clone() }).contains("one slot"));
        let greeting = Message::Hello(good).encode();

        // Messages at the wrong time.
        let offered = || {
            let mut client = Client::new(&terms);
            client.handle(&greeting, 0).unwrap();
            client.offer(SIZE, 4, |_, _| 0);
            client
        };
        for early in [Message::Ack, connected()] {
            assert_eq!(Client::new(&terms).handle(&early.encode(), 0), Err(unexpected(&early)));
        }
        assert_eq!(
            offered().handle(&connected().encode(), 0),
            Err("CONNECTED came when it should not".into())
        );
        assert_eq!(offered().handle(&greeting, 0), Err("HELLO came when it should not".into()));
        assert!(offered().handle(&Message::Ack.encode(), 1).unwrap_err().contains("brings 1 descriptors"));
        let mut client = offered();
        for _ in 0..6 {
            client.handle(&Message::Ack.encode(), 0).unwrap();
        }
        assert_eq!(client.handle(&Message::Ack.encode(), 0), Err("ACK came when it should not".into()));
        let goodbye = Message::Disconnect { why: "full".into() }.encode();
        assert_eq!(offered().handle(&goodbye, 0), Err("the peer disconnected: \"full\"".into()));
        assert_eq!(after_handshake(&goodbye), ("the peer disconnected: \"full\"".into(), true));
        assert_eq!(after_handshake(&Message::Ack.encode()), ("ACK came when it should not".into(), false));
        assert!(!after_handshake(&[1; 3]).1);
    }

    #[test]
    fn any_messages_end_in_an_offer_or_an_error() {
        // Goal: for random messages, most of them nearly valid, an offer at the end is within its region, and the number of messages is
        // bounded.
        let terms = terms(2);
        let good = script(&terms);
        let mut state = 7u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let mut offers = 0;
        for _ in 0..if cfg!(miri) { 50 } else { 5000 } {
            let mut server = Server::new(&terms);
            let mut taken = 0;
            for step in 0.. {
                assert!(step <= good.len(), "one message too many was taken");
                let at = if random(12) == 0 { random(good.len()) } else { taken.min(good.len() - 1) };
                let (message, fds) = &good[at];
                let mut bytes = message.encode();
                if random(12) == 0 {
                    bytes[2 + random(20)] = random(256) as u8;
                }
                match server.handle(&bytes, fds.clone(), false) {
                    Ok(ServerStep::Answer(_)) => taken += 1,
                    Ok(ServerStep::Connect(offer)) => {
                        offers += 1;
                        assert_eq!((offer.to_server.len(), offer.to_client.len()), (2, 2));
                        for ring in offer.to_server.iter().chain(&offer.to_client) {
                            assert_eq!(ring::check(offer.size, ring.offset, ring.log2), Ok(()));
                        }
                        break;
                    }
                    Err(sentence) => {
                        assert!(!sentence.is_empty());
                        break;
                    }
                }
            }
        }
        assert!(offers > 0, "some handshakes succeed");
    }
}
