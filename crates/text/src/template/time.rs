//! `strftime_now`: the date some templates print, in UTC.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The template function. UTC, so that a prompt does not depend on the machine's time zone.
pub(super) fn strftime_now(format: &str) -> Result<String, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    strftime(format, i64::try_from(now).unwrap_or(0)).map_err(|directive| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now: directive `{directive}` is not supported (expected those of C's strftime)"),
        )
    })
}

struct Moment {
    year: i64,
    month: usize,
    day: i64,
    weekday: usize,
    yearday: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Moment {
    fn new(unix: i64) -> Self {
        let days = unix.div_euclid(86_400);
        let seconds = unix.rem_euclid(86_400);
        // Days since 0000-03-01 in cycles of 400 years, so that the leap day is the last of its year.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let from_march = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let m = (5 * from_march + 2) / 153;
        let day = from_march - (153 * m + 2) / 5 + 1;
        let month = if m < 10 { m + 3 } else { m - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let yearday = if month > 2 { from_march + 59 + i64::from(leap) } else { from_march - 306 };
        Self {
            year,
            month: usize::try_from(month).unwrap_or(1),
            day,
            weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or(0),
            yearday,
            hour: seconds / 3_600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }
}

/// Formats a moment; the error is the directive that is not known.
fn strftime(format: &str, unix: i64) -> Result<String, String> {
    let t = Moment::new(unix);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let weekday = t.weekday as i64;
        let hour12 = (t.hour + 11) % 12 + 1;
        // (value, width, pad)
        let number = match directive {
            Some('Y') => Some((t.year, 1, '0')),
            Some('C') => Some((t.year.div_euclid(100), 2, '0')),
            Some('y') => Some((t.year.rem_euclid(100), 2, '0')),
            Some('m') => Some((t.month as i64, 2, '0')),
            Some('d') => Some((t.day, 2, '0')),
            Some('e') => Some((t.day, 2, ' ')),
            Some('j') => Some((t.yearday + 1, 3, '0')),
            Some('H') => Some((t.hour, 2, '0')),
            Some('k') => Some((t.hour, 2, ' ')),
            Some('I') => Some((hour12, 2, '0')),
            Some('l') => Some((hour12, 2, ' ')),
            Some('M') => Some((t.minute, 2, '0')),
            Some('S') => Some((t.second, 2, '0')),
            Some('f') => Some((0, 6, '0')),
            Some('s') => Some((unix, 1, '0')),
            Some('w') => Some((weekday, 1, '0')),
            Some('u') => Some(((weekday + 6) % 7 + 1, 1, '0')),
            Some('U') => Some(((t.yearday + 7 - weekday) / 7, 2, '0')),
            Some('W') => Some(((t.yearday + 7 - (weekday + 6) % 7) / 7, 2, '0')),
            _ => None,
        };
        if let Some((value, width, pad)) = number {
            let width = if unpadded { 1 } else { width };
            let _ = match pad {
                '0' => write!(out, "{value:0width$}"),
                _ => write!(out, "{value:width$}"),
            };
            continue;
        }
        let composite = match directive {
            Some('a') => DAYS[t.weekday].get(..3).unwrap_or_default(),
            Some('A') => DAYS[t.weekday],
            Some('b' | 'h') => MONTHS[t.month - 1].get(..3).unwrap_or_default(),
            Some('B') => MONTHS[t.month - 1],
            Some('p') => {
                if t.hour < 12 {
                    "AM"
                } else {
                    "PM"
                }
            }
            // A Python datetime without a zone prints none.
            Some('Z' | 'z') => "",
            Some('n') => "\n",
            Some('t') => "\t",
            Some('%') => "%",
            Some(short @ ('F' | 'T' | 'R' | 'D' | 'x' | 'X' | 'c' | 'r')) => {
                let long = match short {
                    'F' => "%Y-%m-%d",
                    'T' | 'X' => "%H:%M:%S",
                    'R' => "%H:%M",
                    'D' | 'x' => "%m/%d/%y",
                    'r' => "%I:%M:%S %p",
                    _ => "%a %b %e %H:%M:%S %Y",
                };
                out.push_str(&strftime(long, unix)?);
                continue;
            }
            Some(other) => return Err(format!("%{}{other}", if unpadded { "-" } else { "" })),
            None => return Err("%".to_owned()),
        };
        out.push_str(composite);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_known_moments() {
        // 2024-02-29 was a Thursday, day 60 of its year.
        let leap = 1_709_211_845;
        for (format, expected) in [
            ("%Y-%m-%d", "2024-02-29"),
            ("%d %b %Y", "29 Feb 2024"),
            ("%B %-d, %Y", "February 29, 2024"),
            ("%A %a %j %w %u", "Thursday Thu 060 4 4"),
            ("%H:%M:%S %I %p", "13:04:05 01 PM"),
            ("%c", "Thu Feb 29 13:04:05 2024"),
            ("%x %X %D %T %R %F", "02/29/24 13:04:05 02/29/24 13:04:05 13:04 2024-02-29"),
            ("%U %W %y %C %%", "08 09 24 20 %"),
            ("%-H %-I %-M %-S %-m %-j %k|%l|%e", "13 1 4 5 2 60 13| 1|29"),
            ("%Z%z|", "|"),
            ("日付 %Y年", "日付 2024年"),
        ] {
            assert_eq!(strftime(format, leap).unwrap(), expected, "{format}");
        }
        assert_eq!(strftime("%F %T %A %I %p", 0).unwrap(), "1970-01-01 00:00:00 Thursday 12 AM");
        assert_eq!(strftime("%F %j %U %W", 946_684_799).unwrap(), "1999-12-31 365 52 52");
        assert_eq!(strftime("%F %j %U %W", 946_684_800).unwrap(), "2000-01-01 001 00 00");
        assert_eq!(strftime("%F %j", 4_107_542_400).unwrap(), "2100-03-01 060");
        assert_eq!(strftime("%F", -1).unwrap(), "1969-12-31");
    }

    #[test]
    fn unknown_directives_are_named() {
        assert_eq!(strftime("%Q", 0).unwrap_err(), "%Q");
        assert_eq!(strftime("%-Q", 0).unwrap_err(), "%-Q");
        assert_eq!(strftime("a%", 0).unwrap_err(), "%");
        assert!(strftime_now("%Q").unwrap_err().to_string().contains("`%Q`"));
        assert!(strftime_now("%Y").unwrap().parse::<i32>().unwrap() >= 2024);
    }
}
