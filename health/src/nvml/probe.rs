// SPDX-License-Identifier: Apache-2.0
//! The work of the probe's process.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::gpu_thread::GpuThread;
use super::reading::{Called, known};
use super::report::{Absence, Command, GpuIdentity, Report};
use crate::kernel_log::{Clock, PciAddress};

/// What the dynamic loader finds the library by.
pub(super) const LIBRARY: &str = "libnvidia-ml.so.1";
/// More GPUs than any machine holds.
pub(super) const MAX_GPUS: u32 = 256;

/// How to watch.
#[derive(Clone, Debug)]
pub struct ProbeSettings {
    /// The library; absent for the one that is installed.
    pub library: Option<PathBuf>,
    /// How often each GPU is looked at.
    pub every: Duration,
    /// The clock for reports.
    pub clock: Clock,
}

/// Where the probe's words go. Nothing here may wait.
pub trait Outlet: Send + Sync {
    /// Says something.
    fn report(&self, report: &Report);
    /// Thread `slot` (0 opens the library, the others have a GPU each) now makes this call.
    fn begin(&self, slot: usize, call: &'static str);
    /// It has returned.
    fn end(&self, slot: usize);
}

/// The probe. Its threads end with the process: one that hangs in the driver cannot be waited for.
#[derive(Debug, Default)]
pub struct Probe {
    quiet: Mutex<BTreeSet<PciAddress>>,
    /// How often it was asked who holds memory.
    asked: AtomicU64,
}

impl Probe {
    /// Starts to watch, on threads of its own.
    ///
    /// # Errors
    ///
    /// When no thread can be started.
    pub fn start(settings: ProbeSettings, outlet: Arc<dyn Outlet>) -> io::Result<Arc<Self>> {
        let probe = Arc::new(Self::default());
        let own = Arc::clone(&probe);
        std::thread::Builder::new()
            .name("nvml".to_owned())
            .spawn(move || own.open(&settings, &outlet))?;
        Ok(probe)
    }

    /// Takes in what it is told.
    pub fn command(&self, command: &Command) {
        let mut quiet = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        match command {
            Command::Quiet { gpu } => quiet.extend(PciAddress::parse(gpu)),
            Command::Resume { gpu } => {
                PciAddress::parse(gpu).map(|pci| quiet.remove(&pci));
            }
            Command::TellHolders => {
                self.asked.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn is_quiet(&self, gpu: PciAddress) -> bool {
        let quiet = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        quiet.contains(&gpu)
    }

    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    fn open(self: &Arc<Self>, settings: &ProbeSettings, outlet: &Arc<dyn Outlet>) {
        let calls = Calls {
            outlet: &**outlet,
            slot: 0,
        };
        let library = settings.library.as_ref();
        let path = library.map_or(OsStr::new(LIBRARY), |path| path.as_os_str());
        let opened = calls.call("nvmlInit_v2", || Nvml::builder().lib_path(path).init());
        let nvml = match opened {
            // For the life of the process: threads that hang must find it in its place.
            Ok(nvml) => &*Box::leak(Box::new(nvml)),
            Err(error) => return outlet.report(&absent(&error)),
        };
        match Listing::read(nvml, &calls) {
            Ok(listing) => {
                let gpus = listing.gpus.iter().map(|(identity, _)| identity.clone());
                outlet.report(&Report::Opened {
                    driver: listing.driver,
                    gpus: gpus.collect(),
                    silent: listing.silent,
                });
                self.watch(settings, outlet, listing.gpus);
            }
            Err(error) => outlet.report(&absent(&error)),
        }
    }

    fn watch(
        self: &Arc<Self>,
        settings: &ProbeSettings,
        outlet: &Arc<dyn Outlet>,
        found: Vec<(GpuIdentity, Device<'static>)>,
    ) {
        for (slot, (identity, device)) in (1..).zip(found) {
            let Some(pci) = PciAddress::parse(&identity.pci) else {
                continue;
            };
            let thread = GpuThread {
                probe: Arc::clone(self),
                outlet: Arc::clone(outlet),
                slot,
                pci,
                device,
                every: settings.every,
                clock: settings.clock,
            };
            let started = std::thread::Builder::new()
                .name(format!("nvml-{}", identity.index))
                .spawn(move || thread.run());
            if let Err(error) = started {
                outlet.report(&Report::NoEvents {
                    gpu: identity.pci,
                    reason: format!("no thread can be started: {error}"),
                });
            }
        }
    }
}

/// What the library has to offer.
struct Listing<'nvml> {
    driver: String,
    gpus: Vec<(GpuIdentity, Device<'nvml>)>,
    /// GPUs that cannot be opened, each with the reason.
    silent: Vec<String>,
}

impl<'nvml> Listing<'nvml> {
    fn read(nvml: &'nvml Nvml, calls: &Calls<'_>) -> Result<Self, NvmlError> {
        let driver = calls.call("nvmlSystemGetDriverVersion", || nvml.sys_driver_version())?;
        let count = calls.call("nvmlDeviceGetCount_v2", || nvml.device_count())?;
        let (mut gpus, mut silent) = (Vec::new(), Vec::new());
        for index in 0..count.min(MAX_GPUS) {
            let opened = calls.call("nvmlDeviceGetHandleByIndex_v2", || {
                nvml.device_by_index(index)
            });
            match opened.and_then(|device| Ok((identity(index, &device, calls)?, device))) {
                Ok(gpu) => gpus.push(gpu),
                Err(error) => silent.push(format!("GPU {index}: {error}")),
            }
        }
        Ok(Self {
            driver,
            gpus,
            silent,
        })
    }
}

/// Says which call is made, on behalf of one thread.
pub(super) struct Calls<'a> {
    pub(super) outlet: &'a dyn Outlet,
    pub(super) slot: usize,
}

impl Called for Calls<'_> {
    fn call<T>(
        &self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, NvmlError> {
        self.outlet.begin(self.slot, name);
        let result = call();
        self.outlet.end(self.slot);
        result
    }
}

pub(super) fn identity(
    index: u32,
    device: &Device<'_>,
    calls: &impl Called,
) -> Result<GpuIdentity, NvmlError> {
    let info = calls.call("nvmlDeviceGetPciInfo_v3", || device.pci_info())?;
    let uuid = known(calls.call("nvmlDeviceGetUUID", || device.uuid()))?;
    let model = known(calls.call("nvmlDeviceGetName", || device.name()))?;
    let pci = PciAddress {
        domain: info.domain,
        bus: u8::try_from(info.bus).map_err(|_| NvmlError::NotFound)?,
        device: u8::try_from(info.device).map_err(|_| NvmlError::NotFound)?,
    };
    Ok(GpuIdentity {
        index,
        pci: pci.to_string(),
        uuid: uuid.unwrap_or_default(),
        model: model.unwrap_or_default(),
    })
}

/// What an error says about the library as a whole.
pub(super) fn absent(error: &NvmlError) -> Report {
    Report::Absent {
        absence: absence(error),
        reason: error.to_string(),
    }
}

/// The same, as a kind.
pub(super) const fn absence(error: &NvmlError) -> Absence {
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => Absence::Library,
        NvmlError::DriverNotLoaded => Absence::Driver,
        NvmlError::Uninitialized | NvmlError::LibRmVersionMismatch => Absence::Stale,
        _ => Absence::Refused,
    }
}
