//! The figures as a picture: for each shape a row of times and a row of bandwidths, with a panel per operation and a line
//! per side.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::figures::Figures;
use super::plan::{Operation, Shape};
use super::sides::Side;
use crate::Result;
use crate::units::{size_text, time_text};

/// A panel's width and height, in pixels.
const PANEL: (u32, u32) = (520, 330);
/// The height of the title, and of the legend below it.
const LINE: u32 = 40;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What a row of panels shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quantity {
    /// Microseconds, on a logarithmic scale.
    Time,
    /// Gigabytes a second.
    Bandwidth,
}

/// A side's line in a panel.
struct Line {
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Draws all sides' figures into `file`.
pub(crate) fn draw(figures: &Figures, sides: &[Side], file: &Path) -> Result<()> {
    let operations: Vec<_> = [Operation::AllReduce, Operation::AllGather, Operation::SendRecv]
        .into_iter()
        .filter(|&operation| figures.of(operation).next().is_some())
        .collect();
    let shapes = figures.shapes();
    if operations.is_empty() || shapes.is_empty() {
        return Err(format!("{}: there is nothing to draw", file.display()));
    }
    let wrong = |e: String| format!("{}: {e}", file.display());
    let rows: Vec<_> =
        shapes.iter().flat_map(|&shape| [(shape, Quantity::Time), (shape, Quantity::Bandwidth)]).collect();
    let size = (PANEL.0 * operations.len() as u32, 2 * LINE + PANEL.1 * rows.len() as u32);
    let picture = SVGBackend::new(file, size).into_drawing_area();
    picture.fill(&WHITE).map_err(|e| wrong(e.to_string()))?;
    let title = "Collectives over loopback: the slowest rank's median, bus bandwidth as nccl-tests counts it";
    let picture = picture.titled(title, ("sans-serif", 20)).map_err(|e| wrong(e.to_string()))?;
    // Above the panels, where it hides no line.
    let (top, picture) = picture.split_vertically(LINE);
    legend(&top, sides).map_err(|e| wrong(e.to_string()))?;
    let panels = picture.split_evenly((rows.len(), operations.len()));
    for (&(shape, quantity), areas) in rows.iter().zip(panels.chunks(operations.len())) {
        for (&operation, area) in operations.iter().zip(areas) {
            let lines = lines(figures, sides, shape, operation, quantity);
            panel(area, &format!("{}, {}", operation.title(), shape.text()), quantity, lines)
                .map_err(|e| wrong(e.to_string()))?;
        }
    }
    picture.present().map_err(|e| wrong(e.to_string()))
}

fn lines(figures: &Figures, sides: &[Side], shape: Shape, operation: Operation, quantity: Quantity) -> Vec<Line> {
    let line = |(side, what): (usize, &Side)| {
        let points = figures.of(operation).filter_map(|(i, measurement)| {
            let us = figures.time(shape, side, i)?;
            let y = match quantity {
                Quantity::Time => us,
                Quantity::Bandwidth => measurement.bus_bandwidth(shape.ranks, us),
            };
            Some((measurement.size.max(1) as f64, y))
        });
        Line { color: color(what), points: points.collect() }
    };
    sides.iter().enumerate().map(line).collect()
}

/// A line of each side's colour, with its name.
fn legend(area: &Area<'_>, sides: &[Side]) -> Result<(), Box<dyn std::error::Error>> {
    let mut x = 20;
    for side in sides {
        area.draw(&PathElement::new([(x, 12), (x + 24, 12)], color(side).stroke_width(2)))?;
        area.draw(&Circle::new((x + 12, 12), 3, color(side).filled()))?;
        let text = format!("{}: {}", side.name(), side.description());
        area.draw(&Text::new(text.clone(), (x + 30, 6), ("sans-serif", 13)))?;
        // About the text's width.
        x += 60 + 7 * text.len() as i32;
    }
    Ok(())
}

/// Draws the lines, with a mark at each point.
macro_rules! series {
    ($chart:ident, $lines:ident) => {
        for Line { color, points } in $lines {
            $chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, color.filled())))?;
            $chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
        }
    };
}

fn panel(area: &Area<'_>, title: &str, quantity: Quantity, lines: Vec<Line>) -> Result<(), Box<dyn std::error::Error>> {
    let all = || lines.iter().flat_map(|line| &line.points).copied();
    let x = around(all().map(|point| point.0));
    let mut builder = ChartBuilder::on(area);
    builder.caption(title, ("sans-serif", 15)).margin(10).x_label_area_size(30).y_label_area_size(75);
    let size = |bytes: &f64| size_text(bytes.round() as u64);
    match quantity {
        Quantity::Time => {
            let y = around(all().map(|point| point.1));
            let mut chart = builder.build_cartesian_2d(x.log_scale().base(2.0), y.log_scale())?;
            chart
                .configure_mesh()
                .x_labels(8)
                .x_label_formatter(&size)
                .y_label_formatter(&|us| time_text(*us))
                .draw()?;
            series!(chart, lines);
        }
        Quantity::Bandwidth => {
            let most = all().map(|point| point.1).fold(0.0, f64::max);
            let mut chart = builder.build_cartesian_2d(x.log_scale().base(2.0), 0.0..(most * 1.1).max(1e-6))?;
            let gigabytes = |rate: &f64| format!("{rate:.2} GB/s");
            chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .x_labels(8)
                .x_label_formatter(&size)
                .y_labels(6)
                .y_label_formatter(&gigabytes)
                .draw()?;
            series!(chart, lines);
        }
    }
    Ok(())
}

/// The range of what is above 0, with some room.
fn around(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.filter(|v| *v > 0.0).fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    if low > high { 1.0..10.0 } else { low / 1.5..high * 1.5 }
}

/// Colours that the colour-blind tell apart (Okabe and Ito's).
fn color(side: &Side) -> RGBColor {
    match side {
        Side::Ours { .. } => RGBColor(0, 114, 178),
        Side::Mlx { .. } => RGBColor(213, 94, 0),
        Side::OpenMpi { .. } => RGBColor(0, 158, 115),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::tests::figures;

    #[test]
    fn every_side_has_a_line_in_every_panel() {
        let (figures, sides) = figures();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plot.svg");
        draw(&figures, &sides, &file).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        // In each of the two panels, times and bandwidths, a line with two marks; one of each in the legend.
        for color in ["#0072B2", "#D55E00"] {
            let of = |element: &str| text.lines().filter(|l| l.contains(element) && l.contains(color)).count();
            assert_eq!((of("<polyline"), of("<circle")), (3, 5), "{text}");
        }
    }

    #[test]
    fn a_range_holds_all_values_above_zero() {
        let range = around([0.0, 3.0, 30.0].into_iter());
        assert!(range.start < 3.0 && range.start > 0.0 && range.end > 30.0);
        assert_eq!(around([].into_iter()), 1.0..10.0);
    }
}
