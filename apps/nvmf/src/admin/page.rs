//! The data that the library itself returns to hosts: Identify structures, log pages, the host identifier.

use core::ops::Range;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromZeros, IntoBytes};

use crate::association::Association;
use crate::commands;
use crate::config::{Namespace, Settings};
use crate::limits;
use crate::live::Table;
use crate::nqn::Nqn;
use crate::target::{Arrival, Target};
use crate::window::Window;
use crate::wire::identify::{self, DescriptorHead};
use crate::wire::log::{self, Effects, lid};
use crate::wire::{ascii, zero_padded};

use super::discovery;
use super::events::{Event, Events};
use super::features::events_of;
use super::properties::VERSION;

/// A structure or log page that a command returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Page {
    Controller,
    Namespace(u32),
    /// The active namespace identifiers that are greater than this one.
    ActiveNamespaces(u32),
    Descriptors(u32),
    /// Command limits of the NVM command set. All are zero, because only MDTS limits commands.
    NvmController,
    /// A log page from byte `start` on. With `retain` (RAE) its event stays masked.
    Log {
        lid: u8,
        start: u64,
        retain: bool,
    },
    HostId,
}

/// Where the contents of the pages come from.
pub(crate) struct Sources<'a> {
    pub target: &'a Target,
    pub association: &'a Association,
    pub events: &'a mut Events,
    pub arrival: Arrival,
}

/// Log pages of fixed length, and their lengths in bytes.
const LOGS: &[(u8, u64)] = &[
    (lid::ERROR, (limits::ERROR_ENTRIES * 64) as u64),
    (lid::SMART, 512),
    (lid::FIRMWARE, 512),
    (lid::CHANGED_NAMESPACES, 4096),
    (lid::EFFECTS, 4096),
];

impl Sources<'_> {
    /// Length of a log page in bytes; `None` if the controller does not have it.
    pub fn log_len(&self, lid: u8) -> Option<u64> {
        match self.association.live {
            None if lid == lid::DISCOVERY => Some(discovery::len(self.target, &self.association.host)),
            None => None,
            Some(_) => LOGS.iter().find(|row| row.0 == lid).map(|row| row.1),
        }
    }

    /// Fills `buf` with `page`. Bytes after the end of the page are zero.
    pub fn fill(&mut self, page: Page, buf: &mut [u8]) {
        let start = if let Page::Log { start, .. } = page { start } else { 0 };
        let mut window = Window::new(start, buf);
        match page {
            Page::Controller => window.put(0, self.controller().as_bytes()),
            Page::Namespace(nsid) => {
                if let Some(namespace) = self.table().get(nsid) {
                    window.put(0, identify_namespace(namespace).as_bytes());
                }
            }
            Page::ActiveNamespaces(above) => {
                let table = self.table();
                let list = table.iter().map(|n| n.nsid).filter(|&nsid| nsid > above);
                for (at, nsid) in (0..identify::LEN as u64).step_by(4).zip(list) {
                    window.put(at, &nsid.to_le_bytes());
                }
            }
            Page::Descriptors(nsid) => {
                if let Some(namespace) = self.table().get(nsid) {
                    descriptors(namespace, &mut window);
                }
            }
            Page::NvmController => {}
            Page::HostId => window.put(0, &self.association.host_id),
            Page::Log { lid, retain, .. } => {
                self.log(lid, &mut window);
                if let Some(event) = Event::of_page(lid) {
                    self.events.read(event, retain);
                }
            }
        }
    }

    fn table(&self) -> std::sync::Arc<Table> {
        self.association.live.as_ref().map(|live| live.snapshot().table).unwrap_or_default()
    }

    fn log(&mut self, lid: u8, window: &mut Window<'_>) {
        match lid {
            lid::ERROR => window.put(0, self.association.errors().0.as_bytes()),
            lid::SMART => window.put(0, self.smart().as_bytes()),
            lid::FIRMWARE => {
                let revision = ascii(&self.target.settings().firmware);
                window.put(0, log::Firmware { active: 1, revision, ..FromZeros::new_zeroed() }.as_bytes());
            }
            lid::CHANGED_NAMESPACES => {
                for (at, nsid) in (0u64..).step_by(4).zip(self.events.changed(self.target)) {
                    window.put(at, &nsid.to_le_bytes());
                }
            }
            lid::EFFECTS => window.put(0, effects().as_bytes()),
            lid::DISCOVERY => {
                let host = &self.association.host;
                discovery::fill(self.target, host, self.arrival, window);
            }
            _ => {}
        }
    }

    fn controller(&self) -> identify::Controller {
        let settings = self.target.settings();
        let live = self.association.live.as_deref();
        let both = identify::Controller {
            mn: ascii(&settings.model),
            fr: ascii(&settings.firmware),
            mdts: mdts(settings, live.is_none()),
            maxcmd: U16::new(settings.queue_entries),
            cntlid: U16::new(self.association.cntlid),
            ver: U32::new(VERSION),
            oaes: U32::new(events_of(live.is_none())),
            ctratt: U32::new(identify::Controller::HOST_ID_128 | identify::Controller::TRAFFIC_KEEP_ALIVE),
            acl: 3,
            aerl: limits::EVENT_REQUESTS as u8 - 1,
            kas: U16::new(limits::KEEP_ALIVE_GRANULARITY),
            ..FromZeros::new_zeroed()
        };
        let Some(live) = live else {
            return identify::Controller {
                sn: ascii("0"),
                cntrltype: 2,
                lpa: LPA_OFFSETS,
                sgls: U32::new(identify::Controller::SGLS),
                subnqn: zero_padded(Nqn::DISCOVERY),
                ..both
            };
        };
        identify::Controller {
            sn: ascii(&live.serial),
            cmic: identify::Controller::SEVERAL_PORTS | identify::Controller::SEVERAL_CONTROLLERS,
            cntrltype: 1,
            frmw: identify::Controller::ONE_FIRMWARE,
            lpa: LPA_OFFSETS | LPA_EFFECTS,
            elpe: limits::ERROR_ENTRIES as u8 - 1,
            sqes: 0x66,
            cqes: 0x44,
            nn: U32::new(limits::NAMESPACES_MAX),
            mnan: U32::new(limits::NAMESPACES_MAX),
            oncs: U16::new(self.oncs()),
            vwc: identify::Controller::CACHE,
            sgls: U32::new(sgls(settings)),
            subnqn: zero_padded(live.nqn.as_str()),
            ioccsz: U32::new(4 + settings.in_capsule / 16),
            iorcsz: U32::new(1),
            msdbd: 1,
            ..both
        }
    }

    /// The optional NVM commands. Dataset Management is announced if a namespace can deallocate, or if there is no namespace yet.
    fn oncs(&self) -> u16 {
        let table = self.table();
        let gives_back = table.iter().any(|namespace| namespace.deallocates.is_some());
        let dataset_management = if gives_back || table.iter().next().is_none() {
            identify::Controller::ONCS_DATASET_MANAGEMENT
        } else {
            0
        };
        identify::Controller::ONCS | dataset_management
    }

    fn smart(&self) -> log::Smart {
        let totals = self.association.live.as_ref().map(|live| live.counters.totals()).unwrap_or_default();
        // In units of 1000 times 512 bytes, rounded up.
        let units = |bytes: u64| U128::new(bytes.div_ceil(512_000) as u128);
        let lost = self.association.live.as_ref().is_some_and(|live| live.has_failed());
        log::Smart {
            warning: if lost { log::Smart::RELIABILITY } else { 0 },
            spare: 100,
            data_read: units(totals.bytes_read),
            data_written: units(totals.bytes_written),
            reads: U128::new(totals.reads as u128),
            writes: U128::new(totals.writes as u128),
            media_errors: U128::new(totals.media_errors as u128),
            error_entries: U128::new(self.association.errors().1 as u128),
            ..FromZeros::new_zeroed()
        }
    }
}

/// Bytes of a memory page.
const PAGE: u32 = 4096;
/// LPA bit: the Commands Supported and Effects log page.
const LPA_EFFECTS: u8 = 1 << 1;
/// LPA bit: extended data for Get Log Page, that is, offsets.
const LPA_OFFSETS: u8 = 1 << 2;

/// MDTS of a controller. It is limited for discovery controllers, because any host may have one.
pub(crate) fn mdts(settings: &Settings, discovery: bool) -> u8 {
    if discovery { settings.mdts.min(limits::DISCOVERY_MDTS) } else { settings.mdts }
}

fn sgls(settings: &Settings) -> u32 {
    let offset = if settings.in_capsule > 0 { identify::Controller::SGLS_OFFSET } else { 0 };
    identify::Controller::SGLS | offset
}

fn identify_namespace(namespace: &Namespace) -> identify::Namespace {
    let blocks = U64::new(namespace.blocks);
    let mut page = identify::Namespace {
        nsze: blocks,
        ncap: blocks,
        nuse: blocks,
        nmic: 1,
        nsattr: namespace.read_only as u8,
        nguid: namespace.nguid,
        ..FromZeros::new_zeroed()
    };
    if let Some(bytes) = namespace.deallocates {
        page.dlfeat = 1 | 1 << 3;
        let less_one = |bytes: u32| {
            let blocks = (bytes >> namespace.block_shift).saturating_sub(1);
            U16::new(blocks.try_into().unwrap_or(u16::MAX))
        };
        if bytes >> namespace.block_shift > 1 {
            page.nsfeat = identify::Namespace::GRANULARITIES;
            (page.npdg, page.npda) = (less_one(bytes), less_one(bytes));
            // The preferred write granularity is independent of the deallocate granularity: a memory page.
            let written = less_one(bytes.min(PAGE));
            (page.npwg, page.npwa, page.nows) = (written, written, written);
        }
    }
    page.lbaf[0].lbads = namespace.block_shift;
    page
}

fn descriptors(namespace: &Namespace, window: &mut Window<'_>) {
    let list = [(DescriptorHead::UUID, &namespace.uuid), (DescriptorHead::NGUID, &namespace.nguid)];
    let mut at = 0;
    for (kind, id) in list {
        window.put(at, DescriptorHead { kind, len: 16, reserved: [0; 2] }.as_bytes());
        window.put(at + 4, id);
        at += 20;
    }
}

fn effects() -> Effects {
    let mut effects = Effects::none();
    for &opcode in commands::ADMIN {
        effects.admin[opcode as usize] = U32::new(Effects::SUPPORTED);
    }
    for &(opcode, changes) in commands::IO {
        let changes = if changes { Effects::CHANGES_BLOCKS } else { 0 };
        effects.io[opcode as usize] = U32::new(Effects::SUPPORTED | changes);
    }
    effects
}

/// The range of bytes of a log page that a command asks for. Command dwords 10 to 13 hold the offset in bytes and the length in dwords, 0's
/// based. `None` if the offset is not a multiple of 4, or the end overflows.
pub(crate) fn log_range(cdw10: u32, cdw11: u32, cdw12: u32, cdw13: u32) -> Option<Range<u64>> {
    let dwords = (cdw10 >> 16 | (cdw11 & 0xFFFF) << 16) as u64 + 1;
    let start = cdw12 as u64 | (cdw13 as u64) << 32;
    let end = start.checked_add(dwords * 4)?;
    start.is_multiple_of(4).then_some(start..end)
}
