//! Dates: what a manifest says, and what a `Retry-After` header may say.
//!
//! Proleptic Gregorian days, after the two functions of H. Hinnant's "chrono-compatible low-level date algorithms".

use std::time::{SystemTime, UNIX_EPOCH};

const DAY: i64 = 86_400;

/// Days since 1970-01-01 of a date.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year, month and day of a number of days since 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days - era * 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, of_year - (153 * from_march + 2) / 5 + 1)
}

/// A time as RFC 3339 writes it, in UTC, to the second.
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |seconds| -seconds),
    };
    let (year, month, day) = civil(seconds.div_euclid(DAY));
    let left = seconds.rem_euclid(DAY);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", left / 3600, left / 60 % 60, left % 60)
}

/// Seconds since 1970 of a date as HTTP writes it: `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, IMF-fixdate).
pub fn http_date(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, rest) = text.split_once(", ")?;
    let parts: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, clock, "GMT"] = parts[..] else { return None };
    let number = |text: &str, digits: usize, most: i64| {
        let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i64>().ok().filter(|number| plain && *number <= most)
    };
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let clock: Vec<&str> = clock.split(':').collect();
    let [hour, minute, second] = clock[..] else { return None };
    let clock = number(hour, 2, 23)? * 3600 + number(minute, 2, 59)? * 60 + number(second, 2, 60)?;
    Some(days(number(year, 4, 9999)?, month, number(day, 2, 31)?) * DAY + clock)
}
