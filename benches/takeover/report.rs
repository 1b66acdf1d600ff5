//! The table that is printed in the end.

/// One line: what was measured, and what it must be.
#[derive(Debug)]
struct Line {
    what: String,
    values: Vec<f64>,
    must: String,
    holds: bool,
}

/// What was measured so far.
#[derive(Debug, Default)]
pub struct Report(Vec<Line>);

impl Report {
    /// Adds values whose largest one must be at most `most`, and whose median at most `median`.
    pub fn at_most(&mut self, what: &str, mut values: Vec<f64>, median: Option<f64>, most: f64) {
        values.sort_by(f64::total_cmp);
        let must = match median {
            Some(median) => format!("p50 <= {median}, p100 <= {most}"),
            None => format!("<= {most}"),
        };
        let holds = values.last().is_some_and(|last| *last <= most)
            && median.is_none_or(|median| middle(&values) <= median);
        self.add(Line { what: what.to_owned(), values, must, holds });
    }

    /// Adds something that is so or is not.
    pub fn fact(&mut self, what: &str, found: &str, must: &str, holds: bool) {
        let what = format!("{what}: {found}");
        self.add(Line { what, values: Vec::new(), must: must.to_owned(), holds });
    }

    fn add(&mut self, line: Line) {
        eprintln!("{}", line.text());
        self.0.push(line);
    }

    pub fn print(&self) {
        println!("\n{}  must", heading("", ["n", "min", "p50", "p100"].map(str::to_owned)));
        for line in &self.0 {
            println!("{}", line.text());
        }
        let short = self.0.iter().filter(|line| !line.holds).count();
        println!("{} of {} hold", self.0.len() - short, self.0.len());
    }
}

impl Line {
    fn text(&self) -> String {
        let numbers = match self.values[..] {
            [] => Default::default(),
            [first, .., last] => {
                let [low, mid, high] =
                    [first, middle(&self.values), last].map(|v| format!("{v:.2}"));
                [self.values.len().to_string(), low, mid, high]
            }
            [one] => ["1".to_owned(), String::new(), String::new(), format!("{one:.2}")],
        };
        let verdict = if self.holds { "ok" } else { "SHORT" };
        format!("{}  {} {verdict}", heading(&self.what, numbers), self.must)
    }
}

fn heading(what: &str, [n, low, mid, high]: [String; 4]) -> String {
    format!("{what:58} {n:>4} {low:>8} {mid:>8} {high:>8}")
}

fn middle(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}
