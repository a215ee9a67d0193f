//! JACCL's launch: the device matrix, the coordinator and the rank. Which devices exist is for whoever opens them.

use crate::address::Address;
use crate::error::{DeviceFault, Error, ErrorKind, Excerpt, Origin, Shape, Spot};
use crate::file::{self, Content};
use crate::rank::{self, MLX_RANK};
use crate::vars::{self, Vars};

/// JACCL's own names come first: they win over MLX's (`Config::from_env` in MLX's `jaccl.cpp`).
const DEVICES: [&str; 2] = ["JACCL_IBV_DEVICES", "MLX_IBV_DEVICES"];
const COORDINATOR: [&str; 2] = ["JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR"];
const RANK: [&str; 2] = ["JACCL_RANK", MLX_RANK];
const RING: [&str; 2] = ["JACCL_RING", "MLX_JACCL_RING"];

/// What an error says for each where it is missing.
const DEVICES_MISSING: &str = "MLX_IBV_DEVICES (or JACCL_IBV_DEVICES)";
const COORDINATOR_MISSING: &str = "MLX_JACCL_COORDINATOR (or JACCL_COORDINATOR)";
const RANK_MISSING: &str = "MLX_RANK (or JACCL_RANK)";

/// A group of ranks that RDMA devices connect.
///
/// The device file holds a JSON matrix: row `r`, column `c` has the devices by which rank `r` reaches rank `c`, as
/// `null` (none), a name, or a list of names. A list without any name is `null`.
///
/// What comes from this crate has a square matrix of at least one row, `rank` below [`Jaccl::size`], and forms a mesh
/// or a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Jaccl {
    /// This process's rank, from 0.
    pub rank: usize,
    /// The names of the devices from each rank (row) to each rank (column).
    pub devices: Vec<Vec<Vec<String>>>,
    /// Where rank 0 listens and the others dial to exchange what queue pairs need.
    pub coordinator: Address,
    /// Whether to form a ring where the devices allow both a ring and a mesh.
    pub prefer_ring: bool,
    origin: Origin,
}

/// How JACCL's ranks are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Every rank with every other.
    Mesh,
    /// Every rank with its left and its right.
    Ring,
}

impl Jaccl {
    /// Reads JACCL's environment. `None` if neither the device file, nor the coordinator, nor `JACCL_RANK` is set.
    ///
    /// # Errors
    ///
    /// One of the device file, the coordinator and the rank is missing while another is set, or breaks a rule.
    pub(crate) fn read(vars: &dyn Vars) -> Result<Option<Self>, Error> {
        let devices = vars::first_set(vars, &DEVICES);
        let coordinator = vars::first_set(vars, &COORDINATOR);
        let rank = vars::first_set(vars, &RANK);
        // MLX_RANK belongs to the ring too, so it alone begins nothing here.
        let own_rank = rank.as_ref().filter(|(name, _)| *name != MLX_RANK);
        let begun = devices.as_ref().or(coordinator.as_ref()).or(own_rank);
        let Some(begun) = begun.map(|(name, _)| *name) else { return Ok(None) };
        let (Some(devices), Some(coordinator), Some(rank)) = (&devices, &coordinator, &rank) else {
            let absent = |found: bool, name| (!found).then_some(name);
            let missing = [
                absent(devices.is_some(), DEVICES_MISSING),
                absent(coordinator.is_some(), COORDINATOR_MISSING),
                absent(rank.is_some(), RANK_MISSING),
            ];
            let kind = ErrorKind::Incomplete { missing: missing.into_iter().flatten().collect() };
            return Err(Error::new(Origin::Variable(begun), Spot::Whole, kind));
        };

        let text = vars::trimmed(coordinator.0, coordinator.1.clone(), "the \"host:port\" of rank 0")?;
        let coordinator = parse_coordinator(Origin::Variable(coordinator.0), &text)?;
        let rank_text = vars::trimmed(rank.0, rank.1.clone(), rank::EXPECTED)?;
        let path = file::path(devices.0, devices.1.clone(), "the path of a device file")?;
        let origin = Origin::File { variable: devices.0, path: path.clone() };
        let matrix = match file::read(&origin, &path, Shape::Matrix)? {
            Content::Blank => return Err(Error::new(origin, Spot::Whole, ErrorKind::Blank(Shape::Matrix))),
            Content::Json(value) => matrix(&origin, value)?,
        };
        check_matrix(&origin, &matrix)?;
        let rank = rank::parse(&rank_text, matrix.len())
            .map_err(|kind| Error::new(Origin::Variable(rank.0), Spot::Whole, kind))?;
        let prefer_ring = vars::first_set(vars, &RING).is_some();
        let jaccl = Self { rank, devices: matrix, coordinator, prefer_ring, origin };
        jaccl.check()?;
        Ok(Some(jaccl))
    }

    /// Validates what a program has in place of an environment, by the same rules and with the same words; an error's
    /// place is `devices[1][0]` in place of a file.
    ///
    /// # Errors
    ///
    /// An argument breaks a rule of [`Jaccl`].
    pub fn new(
        rank: usize,
        devices: Vec<Vec<Vec<String>>>,
        coordinator: &str,
        prefer_ring: bool,
    ) -> Result<Self, Error> {
        let coordinator = parse_coordinator(Origin::Argument("coordinator"), coordinator)?;
        let origin = Origin::Argument("devices");
        check_matrix(&origin, &devices)?;
        if rank >= devices.len() {
            let kind = ErrorKind::BadRank { value: Excerpt::new(&rank.to_string()), size: devices.len() };
            return Err(Error::new(Origin::Argument("rank"), Spot::Whole, kind));
        }
        let jaccl = Self { rank, devices, coordinator, prefer_ring, origin };
        jaccl.check()?;
        Ok(jaccl)
    }

    /// The number of ranks. A group of one opens no device.
    pub fn size(&self) -> usize {
        self.devices.len()
    }

    /// The topology to form: the one that is valid, and of two the mesh unless the ring is preferred (as in MLX's
    /// `jaccl::init`).
    pub fn topology(&self) -> Topology {
        let ring = if self.prefer_ring { self.ring_fault().is_none() } else { self.mesh_fault().is_some() };
        if ring { Topology::Ring } else { Topology::Mesh }
    }

    /// Errors: [`ErrorKind::NoTopology`], which says what is invalid for a mesh and what for a ring.
    fn check(&self) -> Result<(), Error> {
        match (self.mesh_fault(), self.ring_fault()) {
            (Some((mesh_at, mesh)), Some((ring_at, ring))) => {
                let kind = ErrorKind::NoTopology { mesh_at, mesh, ring_at, ring };
                Err(Error::new(self.origin.clone(), Spot::Whole, kind))
            }
            _ => Ok(()),
        }
    }

    /// All cells, row by row, with the number of devices in each.
    fn cells(&self) -> impl Iterator<Item = ((usize, usize), usize)> {
        self.devices
            .iter()
            .enumerate()
            .flat_map(|(row, cells)| cells.iter().enumerate().map(move |(column, names)| ((row, column), names.len())))
    }

    /// The first cell that a mesh forbids, which has devices everywhere but on the diagonal.
    fn mesh_fault(&self) -> Option<((usize, usize), DeviceFault)> {
        self.cells().find_map(|((row, column), count)| match (row == column, count) {
            (true, 1..) => Some(((row, column), DeviceFault::OnDiagonal)),
            (false, 0) => Some(((row, column), DeviceFault::NoDevice)),
            _ => None,
        })
    }

    /// The first cell that a ring forbids: every rank has equally many devices, at least one, to its left and to its
    /// right. What leads elsewhere does not matter. A ring of one rank has no device.
    fn ring_fault(&self) -> Option<((usize, usize), DeviceFault)> {
        let size = self.size();
        if size < 2 {
            return self.mesh_fault();
        }
        let first = self.devices.first().and_then(|row| row.get(1)).map_or(0, Vec::len);
        let neighbours = |row: usize, column: usize| column == (row + 1) % size || row == (column + 1) % size;
        self.cells().filter(|((row, column), _)| neighbours(*row, *column)).find_map(|(at, here)| match here {
            0 => Some((at, DeviceFault::NoDevice)),
            _ if here != first => Some((at, DeviceFault::Unequal { here, first })),
            _ => None,
        })
    }
}

fn parse_coordinator(origin: Origin, text: &str) -> Result<Address, Error> {
    text.parse().map_err(|error| Error::new(origin, Spot::Whole, ErrorKind::Address(error)))
}

/// The names in a device file's JSON.
fn matrix(origin: &Origin, value: serde_json::Value) -> Result<Vec<Vec<Vec<String>>>, Error> {
    use serde_json::Value;
    let at = |spot| move |kind| Error::new(origin.clone(), spot, kind);
    let cell = |value| match value {
        Value::Null => Ok(Vec::new()),
        Value::String(name) => Ok(vec![name]),
        Value::Array(names) => names.into_iter().map(|name| file::string(name, Shape::Device)).collect(),
        other => Err(ErrorKind::WrongType { found: file::describe(&other), expected: Shape::Cell }),
    };
    let of_row = |(row, value)| {
        let cells = file::list(value, Shape::Row).map_err(at(Spot::Row(row)))?;
        cells
            .into_iter()
            .enumerate()
            .map(|(column, value)| cell(value).map_err(at(Spot::Cell { row, column })))
            .collect()
    };
    let rows = file::list(value, Shape::Matrix).map_err(at(Spot::Whole))?;
    rows.into_iter().enumerate().map(of_row).collect()
}

fn check_matrix(origin: &Origin, devices: &[Vec<Vec<String>>]) -> Result<(), Error> {
    let at = |spot, kind| Err(Error::new(origin.clone(), spot, kind));
    let rows = devices.len();
    if rows == 0 {
        return at(Spot::Whole, ErrorKind::NoRanks(Shape::Matrix));
    }
    for (row, cells) in devices.iter().enumerate() {
        if cells.len() != rows {
            return at(Spot::Row(row), ErrorKind::NotSquare { columns: cells.len(), rows });
        }
        if let Some(column) = cells.iter().position(|names| names.iter().any(String::is_empty)) {
            return at(Spot::Cell { row, column }, ErrorKind::EmptyDevice);
        }
    }
    Ok(())
}
