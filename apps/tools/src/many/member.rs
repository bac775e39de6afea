//! A member: a process with a device of its own that executes its parent's orders. It ends with its parent, however the parent ends, and
//! on a signal; on a signal it notifies its peers first, as a program should.

use super::cli::{DriveArg, MemberArgs};
use super::objects::Objects;
use super::order::{Order, Report};
use super::orders::{End, Orders};
use super::work;
use super::work::meet::JoinSocket;
use apps::error::{AppError, Result};
use apps::out::say;
use apps::{pin, warnings};
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use verbs::port::PortOptions;
use verbs::rdma_cm::send_farewells;
use verbs::{Context, DeviceConfig, Drive};

/// Time between two groups of turns while no order has come.
const IDLE: Duration = Duration::from_millis(1);
/// Turns of a group: the burst of one turn is bounded, and more frames may wait.
const IDLE_TURNS: usize = 8;

/// Executes orders until no more come.
///
/// # Errors
/// The error of the order that failed; it has been reported to the parent.
pub fn run(args: &MemberArgs) -> Result<()> {
    warnings::show();
    // If the parent has ended already, the orders end at once.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| AppError::Setup(format!("prctl(PR_SET_PDEATHSIG): {e}")))?;
    end_by_signals()?;
    let orders = Orders::listen();
    let result = execute_all(args, &orders);
    if let Err(error) = &result {
        // The parent may have ended.
        let _ = report(&Report::Failed(error.to_string()));
    }
    result
}

/// Makes SIGINT and SIGTERM end the process at once, after a notification to its peers.
fn end_by_signals() -> Result<()> {
    let refused = |e| AppError::Setup(format!("signals cannot be handled: {e}"));
    let (mut came, signals) = UnixStream::pair().map_err(refused)?;
    for signal in [SIGINT, SIGTERM] {
        pipe::register(signal, signals.try_clone().map_err(refused)?).map_err(refused)?;
    }
    std::thread::spawn(move || {
        // Nothing else is written to this pipe, and the end of the process closes it.
        if came.read_exact(&mut [0]).is_ok() {
            send_farewells();
            std::process::exit(130);
        }
    });
    Ok(())
}

fn report(report: &Report) -> Result<()> {
    let line = serde_json::to_string(report);
    say!("{}", line.map_err(|e| AppError::ProtocolViolation(format!("a report cannot be written: {e}")))?)
}

fn execute_all(args: &MemberArgs, orders: &Orders) -> Result<()> {
    if let Some(core) = args.core {
        pin::pin(core)?;
    }
    let context = open(args)?;
    let mut member = Member { args, context, join_socket: JoinSocket::new()?, orders, objects: None };
    report(&Report::Ready)?;
    while let Some(order) = member.next() {
        if let Some(done) = member.execute(order)? {
            report(&done)?;
        }
    }
    Ok(())
}

fn open(args: &MemberArgs) -> Result<Context> {
    let port = args.port.open(&PortOptions::default()).map_err(|e| AppError::Setup(e.to_string()))?;
    let drive = match args.drive {
        DriveArg::Caller => Drive::Caller,
        DriveArg::Embedded => Drive::Embedded,
    };
    let config = DeviceConfig::new(port).addrs(args.ip.into_iter().collect()).drive(drive);
    let context = Context::open(config)?;
    context.start()?;
    Ok(context)
}

/// A member with its device. The order of the fields is the order of their drops.
struct Member<'a> {
    args: &'a MemberArgs,
    orders: &'a Orders,
    join_socket: JoinSocket,
    objects: Option<Objects>,
    context: Context,
}

impl Member<'_> {
    /// Waits for the next order, and turns the device meanwhile if that is the member's task. `None` if no more orders come.
    fn next(&mut self) -> Option<Order> {
        let objects = self.objects.as_mut().filter(|objects| objects.are_turned_here());
        let Some(objects) = objects else { return self.orders.next() };
        loop {
            match self.orders.next_within(IDLE) {
                Ok(Some(order)) => return Some(order),
                Ok(None) => (0..IDLE_TURNS).for_each(|_| objects.turn()),
                Err(End) => return None,
            }
        }
    }

    /// Executes an order; `None` if it has no report.
    fn execute(&mut self, order: Order) -> Result<Option<Report>> {
        let Self { args, orders, join_socket, objects, context } = self;
        if let Order::Make(make) = order {
            let embedded = args.drive == DriveArg::Embedded;
            let reactor = embedded.then(|| context.reactor(0)).transpose()?;
            // On a port with configured addresses, the link-local address comes first.
            let objects = objects.insert(Objects::new(context, reactor, u8::from(args.ip.is_some()), make)?);
            return Ok(Some(Report::Made(objects.ours()?)));
        }
        let Some(objects) = objects else {
            return Err(AppError::ProtocolViolation(format!("{order:?} before there are queue pairs")));
        };
        Ok(Some(match order {
            Order::Connect(peers) => objects.connect(peers).map(|()| Report::Done)?,
            Order::Join { queue, remote, notify } => join_socket.join(objects, queue, remote, notify)?,
            Order::Meet { queue, remote } => join_socket.meet(objects, queue, remote)?,
            Order::Greet { from, to } => work::greet::run(objects, from..to)?,
            Order::PingPong { begins: true, duration_ms } => {
                work::ping_pong::measure(objects, Duration::from_millis(duration_ms))?
            }
            Order::PingPong { begins: false, .. } => work::ping_pong::answer(objects, orders)?,
            Order::Beat { every_us } => work::beat::run(objects, orders, Duration::from_micros(every_us))?,
            Order::Flood { depth, window_ns } => work::flood::run(objects, depth, window_ns)?,
            Order::Kill { pid, signal, after_ms, late_ms } => {
                let late = late_ms.map(Duration::from_millis);
                work::kill::run(objects, pid, signal, Duration::from_millis(after_ms), late)?
            }
            Order::Turn { turns } => work::turns::run(objects, turns)?,
            // The work that the order stops is over already.
            Order::Stop | Order::Make(_) => return Ok(None),
        }))
    }
}
