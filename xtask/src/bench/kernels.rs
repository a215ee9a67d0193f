//! The reduction kernels, without any communication: the example `kernels` of `nuvec-collectives` measures them.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::Result;

/// Blocks of this many KiB: as a collective reduces from its scratch, and larger than any cache.
const BLOCKS: [u32; 2] = [256, 32 << 10];

/// A figure.
#[derive(Debug, Clone, PartialEq)]
struct Kernel {
    dtype: String,
    /// The reduction, and " mlx" if NaN follows MLX's rule.
    reduction: String,
    /// Of one operand, in gigabytes (10⁹) a second.
    rate: f64,
}

/// Measures with the example `program`: as JSON, and as tables.
pub(crate) fn measure(program: &Path) -> Result<(Value, String)> {
    let (mut all, mut text) = (Vec::new(), String::new());
    for kib in BLOCKS {
        let output = Command::new(program).args([&kib.to_string(), "lines"]).stdin(Stdio::null()).output();
        let output = output.map_err(|e| format!("cannot run {}: {e}", program.display()))?;
        if !output.status.success() {
            return Err(format!("{}: {}", program.display(), String::from_utf8_lossy(&output.stderr).trim()));
        }
        let kernels: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().filter_map(parse).collect();
        if kernels.is_empty() {
            return Err(format!("{} measured nothing", program.display()));
        }
        text += &table(kib, &kernels);
        all.extend(kernels.iter().map(
            |k| json!({ "block_kib": kib, "dtype": k.dtype, "reduction": k.reduction, "gigabytes_per_second": k.rate }),
        ));
    }
    Ok((all.into(), text))
}

/// `@kernel DTYPE GB/s REDUCTION`, where the reduction may have two words.
fn parse(line: &str) -> Option<Kernel> {
    let mut words = line.strip_prefix("@kernel ")?.splitn(3, ' ');
    let (dtype, rate) = (words.next()?.to_string(), words.next()?.parse().ok()?);
    Some(Kernel { dtype, rate, reduction: words.next()?.to_string() })
}

fn table(kib: u32, kernels: &[Kernel]) -> String {
    let mut text = format!("\nreduction kernels, blocks of {kib} KiB: GB/s of one operand\n{:>9}", "dtype");
    let first = &kernels[0].dtype;
    for kernel in kernels.iter().take_while(|k| k.dtype == *first) {
        let _ = write!(text, "{:>10}", kernel.reduction);
    }
    let mut row = "";
    for kernel in kernels {
        if row != kernel.dtype {
            row = &kernel.dtype;
            let _ = write!(text, "\n{row:>9}");
        }
        let _ = write!(text, "{:>10.1}", kernel.rate);
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_a_table_with_a_row_per_dtype() {
        let lines = "@kernel float32 12.34 sum\nnoise\n@kernel float32 9 max mlx\n@kernel bool 30.06 sum\n@kernel x\n";
        let kernels: Vec<_> = lines.lines().filter_map(parse).collect();
        assert_eq!(kernels.len(), 3);
        let expected = "
reduction kernels, blocks of 256 KiB: GB/s of one operand
    dtype       sum   max mlx
  float32      12.3       9.0
     bool      30.1
";
        assert_eq!(table(256, &kernels), expected);
    }

    #[test]
    fn a_program_that_fails_is_an_error() {
        assert!(measure(Path::new("/no/such/program")).unwrap_err().contains("/no/such/program"));
        assert!(measure(Path::new("false")).is_err());
        assert!(measure(Path::new("true")).unwrap_err().contains("measured nothing"));
    }
}
