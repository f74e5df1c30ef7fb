//! Small line charts as SVG, with logarithmic axes: sizes and times here span orders of magnitude.

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 100.0;
const COLOURS: [&str; 6] = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a"];

/// A line in a chart.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Positive numbers; others cannot be shown.
    pub(crate) points: Vec<(f64, f64)>,
}

/// What a chart shows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
}

/// A range of an axis, in powers of ten.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
    start: f64,
    length: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, start: f64, length: f64) -> Axis {
        let (low, high) =
            values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = (low.log10().floor(), high.log10().ceil());
        Axis { low, high: if high > low { high } else { low + 1.0 }, start, length }
    }

    fn position(self, value: f64) -> f64 {
        self.start + (value.log10() - self.low) / (self.high - self.low) * self.length
    }

    /// Powers of ten.
    fn ticks(self) -> impl Iterator<Item = f64> {
        std::iter::successors(Some(self.low), |power| Some(power + 1.0))
            .take_while(move |power| *power <= self.high)
            .map(|power| 10f64.powf(power))
    }
}

impl Chart<'_> {
    /// The chart as an SVG document; nothing without points.
    pub(crate) fn draw(&self, lines: &[Line]) -> Option<String> {
        let lines: Vec<Line> = lines.iter().map(Line::shown).filter(|line| !line.points.is_empty()).collect();
        let points = || lines.iter().flat_map(|line| &line.points);
        points().next()?;
        let x = Axis::new(points().map(|point| point.0), LEFT, WIDTH - LEFT - RIGHT);
        let y = Axis::new(points().map(|point| point.1), HEIGHT - BOTTOM, TOP + BOTTOM - HEIGHT);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        text(&mut svg, WIDTH / 2.0, 22.0, "middle", &format!("{} (logarithmic)", self.title));
        text(&mut svg, WIDTH / 2.0, HEIGHT - BOTTOM + 36.0, "middle", self.x);
        text(&mut svg, LEFT, TOP - 8.0, "middle", self.y);
        for tick in x.ticks() {
            rule(&mut svg, (x.position(tick), TOP), (x.position(tick), HEIGHT - BOTTOM));
            text(&mut svg, x.position(tick), HEIGHT - BOTTOM + 18.0, "middle", &number(tick));
        }
        for tick in y.ticks() {
            rule(&mut svg, (LEFT, y.position(tick)), (WIDTH - RIGHT, y.position(tick)));
            text(&mut svg, LEFT - 6.0, y.position(tick) + 4.0, "end", &number(tick));
        }
        for (index, line) in lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let places: Vec<(f64, f64)> =
                line.points.iter().map(|point| (x.position(point.0), y.position(point.1))).collect();
            draw_line(&mut svg, &places, colour);
            legend(&mut svg, index, &line.name, colour);
        }
        svg.push_str("</svg>\n");
        Some(svg)
    }
}

impl Line {
    /// What a logarithmic axis can show, from left to right.
    fn shown(&self) -> Line {
        let mut points: Vec<(f64, f64)> =
            self.points.iter().copied().filter(|(x, y)| *x > 0.0 && *y > 0.0).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name: self.name.clone(), points }
    }
}

fn draw_line(svg: &mut String, places: &[(f64, f64)], colour: &str) {
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        path.join(" ")
    );
    for (x, y) in places {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
    }
}

/// Two names in a row below the chart.
fn legend(svg: &mut String, index: usize, name: &str, colour: &str) {
    let column = if index.is_multiple_of(2) { LEFT } else { WIDTH / 2.0 };
    let row = HEIGHT - 44.0 + 15.0 * (index / 2) as f64;
    let _ = writeln!(
        svg,
        "<rect x=\"{column}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>",
        row - 6.0
    );
    text(svg, column + 20.0, row, "start", name);
}

fn rule(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#d0d7de\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}

/// 1,000 and 0.01.
fn number(value: f64) -> String {
    if value < 1.0 {
        return value.to_string();
    }
    let digits = format!("{value:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}
