//! Connection tracking of the modelled kernel. Which flows are stale is decided by the model, as in the real one.

use std::net::IpAddr;

use portwarden::engine::{Flows, FlowsError};
use portwarden_model::{Changes, Desired, Family, StaleFlows};

use crate::kernel::SharedKernel;

/// Deletes stale flows from the modelled kernel.
pub(crate) struct ModelledFlows(pub(crate) SharedKernel);

impl Flows for ModelledFlows {
    fn clean(&mut self, desired: &Desired, changes: &Changes, host: &[IpAddr]) -> Result<usize, FlowsError> {
        let Some(stale) = StaleFlows::after(changes, desired, host) else { return Ok(0) };
        let mut kernel = self.0.lock();
        let mut left = kernel.flow_faults.pop_front().map_or(usize::MAX, usize::from);
        let (limited, before) = (left < usize::MAX, kernel.flows.len());
        kernel.flows.retain(|tracked| {
            let flow = &tracked.flow;
            let delete =
                left > 0 && Family::of(flow.destination.ip()) == desired.family && stale.is_stale(flow);
            left -= usize::from(delete);
            !delete
        });
        if limited {
            return Err("the dump was interrupted".into());
        }
        Ok(before - kernel.flows.len())
    }
}
