//! Charts as SVG that takes its colours from the page around it (classes `s0` to `s5`, `grid`, `tick`, `label`).

use std::fmt::Write as _;

/// Maps a value to a position between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// In proportion.
    Linear,
    /// By the logarithm.
    Log,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The quantity of the axis, with its unit.
    pub label: String,
    /// How values map to positions.
    pub scale: Scale,
    /// Smallest and largest value.
    pub range: (f64, f64),
    /// Values with a label, and their labels.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// The position of a value, 0 to 1.
    pub fn at(&self, value: f64) -> f64 {
        let (from, to) = self.range;
        let part = match self.scale {
            Scale::Linear => (value - from) / (to - from),
            Scale::Log => (value / from).ln() / (to / from).ln(),
        };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// A linear axis from 0 to a round number of at least `max`, with four to six ticks.
    pub fn from_zero(label: &str, max: f64, show: impl Fn(f64) -> String) -> Self {
        let step = round_step(max.max(f64::MIN_POSITIVE) / 5.0);
        let count = (max / step).ceil().max(1.0);
        let ticks = (0..=count as u32).map(|n| f64::from(n) * step).map(|v| (v, show(v))).collect();
        Self { label: label.into(), scale: Scale::Linear, range: (0.0, count * step), ticks }
    }

    /// A logarithmic axis over `values`, with ticks at 1, 2 and 5 times the powers of ten.
    pub fn log(label: &str, values: impl Iterator<Item = f64>, show: impl Fn(f64) -> String) -> Self {
        let (min, max) = values
            .filter(|v| *v > 0.0)
            .fold((f64::INFINITY, 0.0f64), |(min, max), v| (min.min(v), max.max(v)));
        let (min, max) = if min.is_finite() { (min, max) } else { (1.0, 10.0) };
        let mut all: Vec<f64> = (-3..12).flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e))).collect();
        let from = all.iter().rposition(|v| *v <= min).unwrap_or(0);
        let to = all.iter().position(|v| *v >= max).unwrap_or(all.len() - 1).max(from + 1);
        all = all[from..=to].to_vec();
        let range = (all[0], all[all.len() - 1]);
        // A long axis has room only for the powers of ten.
        let sparse = all.len() > 10;
        let is_power = |v: f64| (v.log10() - v.log10().round()).abs() < 1e-9;
        let ticks = all.into_iter().filter(|v| !sparse || is_power(*v)).map(|v| (v, show(v))).collect();
        Self { label: label.into(), scale: Scale::Log, range, ticks }
    }
}

/// 1, 2, 2.5 or 5 times a power of ten, at least `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= step * 0.999_999).unwrap_or(step)
}

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name of the line.
    pub name: String,
    /// Colour of the line, 0 to 5.
    pub colour: usize,
    /// Points of the line.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 112.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 52.0;
/// Least distance between two names at the ends of lines.
const NAME_HEIGHT: f64 = 15.0;

/// A chart of lines over two axes. `show` gives the text that appears when the pointer is on a point.
pub fn lines(
    title: &str,
    x: &Axis,
    y: &Axis,
    series: &[Series],
    show: impl Fn(f64, f64) -> String,
) -> String {
    let (w, h) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let px = |v: f64| LEFT + w * x.at(v);
    let py = |v: f64| TOP + h * (1.0 - y.at(v));
    let mut out =
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n", escape(title));
    for (value, text) in &y.ticks {
        let at = py(*value);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            LEFT + w
        );
        let _ = writeln!(
            out,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            escape(text)
        );
    }
    for (value, text) in &x.ticks {
        let at = px(*value);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            TOP + h,
            TOP + h + 18.0,
            escape(text)
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        LEFT + w / 2.0,
        HEIGHT - 8.0,
        escape(&x.label)
    );
    let _ = writeln!(
        out,
        "<text class=\"label\" transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        TOP + h / 2.0,
        escape(&y.label)
    );
    for s in series {
        let path: Vec<_> = s.points.iter().map(|(a, b)| format!("{:.1},{:.1}", px(*a), py(*b))).collect();
        let _ = writeln!(out, "<polyline class=\"line s{}\" points=\"{}\"/>", s.colour, path.join(" "));
        for (a, b) in &s.points {
            let _ = writeln!(
                out,
                "<circle class=\"dot s{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{}</title></circle>",
                s.colour,
                px(*a),
                py(*b),
                escape(&format!("{}: {}", s.name, show(*a, *b)))
            );
        }
    }
    // Names at the ends of the lines, moved apart where they would overlap.
    let mut ends: Vec<(f64, &Series)> =
        series.iter().filter_map(|s| Some((py(s.points.last()?.1), s))).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut below = f64::NEG_INFINITY;
    for (at, s) in ends {
        let at = at.max(below + NAME_HEIGHT);
        below = at;
        let x = s.points.last().map_or(LEFT, |p| px(p.0)) + 8.0;
        let _ = writeln!(
            out,
            "<text class=\"name t{}\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            s.colour,
            at + 4.0,
            escape(&s.name)
        );
    }
    out.push_str("</svg>\n");
    out
}

/// A bar of a bar chart: name, value, the value as text, and colour.
pub type Bar = (String, f64, String, usize);

/// A chart of horizontal bars that begin at 0.
pub fn bars(title: &str, bars: &[Bar]) -> String {
    const NAME: f64 = 210.0;
    const VALUE: f64 = 110.0;
    const STEP: f64 = 28.0;
    let height = STEP * bars.len() as f64 + 8.0;
    let max = bars.iter().map(|b| b.1).fold(f64::MIN_POSITIVE, f64::max);
    let mut out =
        format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n", escape(title));
    for (n, (name, value, text, colour)) in bars.iter().enumerate() {
        let y = 4.0 + STEP * n as f64;
        let w = ((WIDTH - NAME - VALUE) * value / max).max(1.5);
        let _ = writeln!(
            out,
            "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"bar s{colour}\" x=\"{NAME}\" y=\"{:.1}\" width=\"{w:.1}\" height=\"18\" rx=\"3\"/>\
             <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            NAME - 10.0,
            y + 14.0,
            escape(name),
            y + 1.0,
            NAME + w + 8.0,
            y + 14.0,
            escape(text)
        );
    }
    out.push_str("</svg>\n");
    out
}

/// A text escaped for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_where_they_should() {
        let linear = Axis::from_zero("Gb/s", 93.0, |v| v.to_string());
        assert_eq!(linear.range, (0.0, 100.0));
        assert_eq!(
            linear.ticks.iter().map(|t| t.0).collect::<Vec<_>>(),
            [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
        );
        assert_eq!((linear.at(50.0), linear.at(-1.0), linear.at(1000.0)), (0.5, 0.0, 1.0));
        let log = Axis::log("ns", [130.0, 9000.0].into_iter(), |v| v.to_string());
        assert_eq!(log.range, (100.0, 10_000.0));
        assert!((log.at(1000.0) - 0.5).abs() < 1e-12);
        assert_eq!(log.at(0.0), 0.0, "what has no logarithm lies at the edge");
    }

    #[test]
    fn empty_data_make_an_axis_too() {
        let axis = Axis::log("ns", std::iter::empty(), |v| v.to_string());
        assert!(axis.ticks.len() >= 2 && axis.range.0 < axis.range.1);
        assert_eq!(Axis::from_zero("x", 0.0, |v| v.to_string()).at(0.0), 0.0);
    }

    #[test]
    fn steps_are_round() {
        for (step, round) in [(1.0, 1.0), (1.1, 2.0), (2.2, 2.5), (3.0, 5.0), (7.0, 10.0), (0.03, 0.05)] {
            assert!((round_step(step) - round).abs() < 1e-12, "{step}");
        }
    }

    #[test]
    fn a_chart_has_its_points_and_names_that_do_not_overlap() {
        let axis = Axis::from_zero("x", 10.0, |v| v.to_string());
        let series =
            |name: &str, colour, y| Series { name: name.into(), colour, points: vec![(0.0, 0.0), (10.0, y)] };
        let all = [series("a<b", 0, 5.0), series("c", 1, 5.1)];
        let svg = lines("t", &axis, &axis, &all, |x, y| format!("{x} {y}"));
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        let names = svg.lines().filter(|l| l.contains("class=\"name"));
        let ys: Vec<f64> = names
            .map(|l| l.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!(ys.len() == 2 && (ys[1] - ys[0]).abs() >= NAME_HEIGHT - 0.11, "{ys:?}");
    }

    #[test]
    fn the_longest_bar_is_that_of_the_largest_value() {
        let svg = bars("t", &[("a".into(), 1.0, "1".into(), 0), ("b".into(), 4.0, "4".into(), 1)]);
        let widths: Vec<f64> =
            svg.split("width=\"").skip(1).map(|s| s.split('"').next().unwrap().parse().unwrap()).collect();
        assert!((widths[1] / widths[0] - 4.0).abs() < 0.01, "{widths:?}");
    }
}
