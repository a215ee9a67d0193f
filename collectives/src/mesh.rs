//! Collectives over a mesh: which plan each takes, and how it is run. What may not live here: what the operations promise
//! ([`Communicator`]'s documentation says that), and which bytes go where ([`crate::plan::mesh`]).

mod engine;
mod exchange;

use nuvec_transport::{Fabric, Result};

use crate::call::{Algorithm, Call};
use crate::communicator::{Communicator, Inner};
use crate::drive::{Team, drive};
use crate::plan::mesh::{self, MeshPlan};
use crate::stream::Reducer;

pub(crate) use exchange::Exchange;

/// Up to how many bytes an all-reduce over a mesh sends everybody's data to everybody: one hop, but as many times the
/// bytes as there are other ranks. Beyond, in blocks: two hops, and twice the bytes at most.
///
/// Measured with the example `all_reduce --mesh` (f32, TCP over loopback on two cores that others used too; with either
/// way alone, direct against blocks in µs, medians of three rounds): 2 ranks: 8 B 11 to 19, 16 KiB 20 to 25, 32 KiB 29 to
/// 28, 64 KiB 49 to 34; 3 ranks: 8 B 26 to 43, 16 KiB 44 to 36, 32 KiB 66 to 58; 4 ranks: 8 B 45 to 73, 16 KiB 77 to 102,
/// 32 KiB 124 to 110, 64 KiB 313 to 148.
const SHORT_ALL_REDUCE: usize = 16 << 10;
/// Up to how many bytes a broadcast's root sends all of them to everybody itself: one hop. Beyond, in blocks: two hops,
/// but the root sends every byte once. With two ranks there is no difference.
///
/// Measured likewise with `all_reduce --mesh --broadcast`: 3 ranks: 1 KiB 28 to 34, 32 KiB 35 to 39, 64 KiB 48 to 48, 256
/// KiB 185 to 151; 4 ranks: 1 KiB 54 to 82, 32 KiB 70 to 100, 64 KiB 100 to 103, 128 KiB 223 to 156.
const SHORT_BROADCAST: usize = 64 << 10;

impl<F: Fabric> Communicator<F> {
    /// [`Communicator::all_reduce`]; `data` is whole elements.
    pub(crate) fn all_reduce_in_mesh(&self, call: Call, data: &mut [u8], reducer: Reducer) -> Result<()> {
        let (b, n) = (data.len(), self.place.size);
        if b > SHORT_ALL_REDUCE {
            let plan = mesh::all_reduce(self.place, b / reducer.width, reducer.width);
            return self.exchange(call, Algorithm::Blocks, plan, data, Some(reducer));
        }
        self.operate(Call { algorithm: Algorithm::Direct, ..call }, |inner, call| {
            let mut scratch = std::mem::take(&mut inner.scratch);
            scratch.resize(n * b, 0);
            scratch[self.place.rank * b..][..b].copy_from_slice(data);
            self.exchange_in(inner, call, mesh::all_gather(self.place, b), &mut scratch, None)?;
            reducer.fold(&scratch, data);
            inner.scratch = scratch;
            Ok(())
        })
    }

    /// [`Communicator::all_gather`], for who has begun already, with lengths that fit.
    pub(crate) fn gather_in_mesh(
        &self,
        inner: &mut Inner<F>,
        call: Call,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<()> {
        let b = input.len();
        self.operate_in(inner, Call { algorithm: Algorithm::Direct, ..call }, |inner, call| {
            output[self.place.rank * b..][..b].copy_from_slice(input);
            self.exchange_in(inner, call, mesh::all_gather(self.place, b), output, None)
        })
    }

    /// [`Communicator::reduce_scatter`]; `data` is whole blocks.
    pub(crate) fn reduce_scatter_in_mesh(&self, call: Call, data: &mut [u8], reducer: Reducer) -> Result<()> {
        let plan = mesh::reduce_scatter(self.place, data.len() / self.place.size);
        self.exchange(call, Algorithm::Blocks, plan, data, Some(reducer))
    }

    /// [`Communicator::broadcast`] from a rank that there is.
    pub(crate) fn broadcast_in_mesh(&self, call: Call, root: usize, data: &mut [u8]) -> Result<()> {
        let (place, b) = (self.place, data.len());
        if b > SHORT_BROADCAST && place.size > 2 {
            return self.exchange(call, Algorithm::Blocks, mesh::scattered_broadcast(place, root, b), data, None);
        }
        self.exchange(call, Algorithm::Direct, mesh::broadcast(place, root, b), data, None)
    }

    /// [`Communicator::barrier`]: every rank's header for every other is all it takes.
    pub(crate) fn barrier_in_mesh(&self, call: Call) -> Result<()> {
        self.exchange(call, Algorithm::Direct, mesh::all_gather(self.place, 0), &mut [], None)
    }

    fn exchange(
        &self,
        call: Call,
        algorithm: Algorithm,
        plan: MeshPlan,
        data: &mut [u8],
        reducer: Option<Reducer>,
    ) -> Result<()> {
        let call = Call { algorithm, ..call };
        self.operate(call, |inner, call| self.exchange_in(inner, call, plan, data, reducer))
    }

    /// Moves `plan` over `data`, in this thread: its streams share this rank's block.
    fn exchange_in(
        &self,
        inner: &mut Inner<F>,
        call: &Call,
        plan: MeshPlan,
        data: &mut [u8],
        reducer: Option<Reducer>,
    ) -> Result<()> {
        let watch = self.watch(&inner.wake);
        let halves = inner.lanes.iter_mut().map(|(tx, rx)| (tx, rx));
        drive(&mut [Exchange::new(halves, plan, data, *call, reducer)], &watch, &Team::default())
    }
}
