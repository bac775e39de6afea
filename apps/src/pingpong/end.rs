//! The queue pair of an end, and its buffer.

use super::exchange::Destination;
use crate::cli::pingpong::{PingpongCli, Service};
use crate::error::{AppError, Result};
use crate::rig::{Driver, Rig};
use verbs::{
    Access, Ah, AttrMask, Context, Cq, GRH_LEN, Gid, Mr, Pd, Psn, Qp, QpAttr, QpCap, QpInitAttr, QpState,
    QpType, Qpn, RcEndpoint, RcOptions, ah_attr_to,
};

/// Contents of the buffer, and the distance between the bytes that `--chk` sets and checks.
const FILL: u8 = 0x7b;
pub const PAGE: usize = 4096;
/// Q_Key of the stock tool's datagrams.
pub const QKEY: u32 = 0x1111_1111;

/// Refuses a message that does not fit through the port.
///
/// # Errors
/// [`AppError::Usage`].
pub fn check_size(cli: &PingpongCli, rig: &Rig) -> Result<()> {
    let (path_mtu, size) = (rig.path_mtu(), cli.message_size() as usize);
    if cli.transport == Service::Ud && size > path_mtu.bytes() {
        return Err(AppError::Usage(format!(
            "a datagram is one packet, of at most {} bytes through a port of {} bytes; use -s or a larger --link-mtu",
            path_mtu.bytes(),
            rig.link_mtu()
        )));
    }
    if cli.transport != Service::Ud && cli.mtu > path_mtu {
        return Err(AppError::Usage(format!(
            "path MTU {} does not fit through a port of {} bytes; use -m {} or a larger --link-mtu",
            cli.mtu.bytes(),
            rig.link_mtu(),
            path_mtu.bytes()
        )));
    }
    Ok(())
}

/// One end of a pingpong. The order of the fields is the order of their drops.
pub struct End<'a> {
    pub cli: &'a PingpongCli,
    pub qp: Qp,
    pub cq: Cq,
    pub mr: Mr,
    /// Bytes in front of the message: a received datagram follows its network header (GRH).
    pub head: usize,
    /// This end's address.
    pub gid: Gid,
    options: RcOptions,
    pd: Pd,
}

impl<'a> End<'a> {
    /// Creates an end whose queue pair can receive, but is not connected.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(
        cli: &'a PingpongCli,
        context: &Context,
        driver: &mut Driver,
        gid: Gid,
        sgid_index: u8,
    ) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let head = if cli.transport == Service::Ud { GRH_LEN } else { 0 };
        let len = head + cli.message_size() as usize;
        let mr = driver.meanwhile(|| {
            let mr = pd.reg_mr(len, Access::LOCAL_WRITE)?;
            mr.fill(0..len, FILL).map(|()| mr)
        })?;
        let cq = context.create_cq(cli.rx_depth + 1)?;
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: cli.rx_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp_type = match cli.transport {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud => QpType::Ud,
        };
        let qp = pd.create_qp(&QpInitAttr::new(qp_type, &cq, &cq).cap(cap))?;
        let options = RcOptions::default()
            .sgid_index(sgid_index)
            .path_mtu(cli.mtu)
            .access(Access::empty())
            .timeout(cli.timeout)
            .sl(cli.sl)
            .traffic_class(cli.sl << 5)
            .max_rd_atomic(1)
            .max_dest_rd_atomic(1);
        let end = Self { cli, qp, cq, mr, head, gid, options, pd };
        end.prepare()?;
        Ok(end)
    }

    fn prepare(&self) -> Result<()> {
        match self.cli.transport {
            Service::Rc | Service::Uc => self.qp.init_rc(&self.options)?,
            Service::Ud => self.qp.activate_ud(QKEY)?,
        }
        Ok(())
    }

    /// Prepares the queue pair for another peer, after one that did not connect.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn reset(&self) -> Result<()> {
        self.qp.modify(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() }, AttrMask::STATE)?;
        self.prepare()
    }

    /// This end, as the other end needs it.
    pub fn destination(&self) -> Destination {
        Destination { lid: 0, qpn: self.qp.qp_num().get(), psn: self.qp.first_psn().get(), gid: self.gid }
    }

    /// The address from the command line, or else the one that the peer sent.
    fn address(&self, theirs: &Destination) -> Gid {
        self.cli.device.peer_ip.map_or(theirs.gid, Gid::from_ip)
    }

    /// Connects the queue pair; does nothing for UD, where each request names its destination.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn connect(&self, theirs: &Destination) -> Result<()> {
        let gid = self.address(theirs);
        let endpoint = RcEndpoint { gid, qpn: Qpn::new(theirs.qpn), psn: Psn::new(theirs.psn) };
        match self.cli.transport {
            Service::Rc => self.qp.connect_rc(&endpoint, &self.options)?,
            Service::Uc => self.qp.connect_uc(&endpoint, &self.options)?,
            Service::Ud => {}
        }
        Ok(())
    }

    /// An address handle for the peer; `None` for a connected queue pair.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn address_handle(&self, theirs: &Destination) -> Result<Option<Ah>> {
        if self.cli.transport != Service::Ud {
            return Ok(None);
        }
        let mut attr = ah_attr_to(self.address(theirs), self.options.sgid_index);
        attr.sl = self.cli.sl;
        if let Some(grh) = &mut attr.grh {
            grh.traffic_class = self.options.traffic_class;
        }
        Ok(Some(self.pd.create_ah(&attr)?))
    }

    /// Checks the last message: zero at the start of each page, the fill everywhere else.
    ///
    /// # Errors
    /// [`AppError::Verify`].
    pub fn check_contents(&self) -> Result<()> {
        let data = self.mr.to_vec(self.head..self.mr.len())?;
        match data.iter().enumerate().find(|(n, b)| **b != if n % PAGE == 0 { 0 } else { FILL }) {
            None => Ok(()),
            Some((n, b)) => Err(AppError::Verify(format!(
                "byte {n} of the message is {b:#04x}; does the other end check contents as well (-c)?"
            ))),
        }
    }
}
