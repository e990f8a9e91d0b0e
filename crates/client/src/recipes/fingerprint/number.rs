//! Numbers as ECMAScript writes them (RFC 8785, section 3.2.2.3), but integers in full.

use super::FingerprintError;

/// Doubles from here on may have neighbours more than 1 apart.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// Doubles below this fit into an `i128`.
const WIDEST: f64 = 1e38;

/// The one form of a number.
pub(super) fn float(value: f64) -> Result<String, FingerprintError> {
    if !value.is_finite() {
        return Err(FingerprintError::NotFinite(value.to_string()));
    }
    if value == 0.0 {
        return Ok("0".into());
    }
    if value.abs() >= EXACT && value.abs() < WIDEST {
        // An integer, which must not have the form of its neighbours. The cast is exact: see `WIDEST`.
        #[allow(clippy::cast_possible_truncation, reason = "the value is an integer within i128")]
        return Ok((value as i128).to_string());
    }
    Ok(ecmascript(value))
}

/// The shortest digits that are read back as this number, placed as ECMAScript's `Number::toString` places them.
fn ecmascript(value: f64) -> String {
    let shortest = format!("{:e}", value.abs());
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    // The position of the decimal point, counted from the first digit.
    let point = exponent.parse::<i32>().unwrap_or_default() + 1;
    let count = digits.len();
    let sign = if value < 0.0 { "-" } else { "" };
    match usize::try_from(point) {
        Ok(point) if (count..=21).contains(&point) => format!("{sign}{digits}{}", "0".repeat(point - count)),
        Ok(point @ 1..=21) => format!("{sign}{}.{}", &digits[..point], &digits[point..]),
        _ if (-5..=0).contains(&point) => {
            format!("{sign}0.{}{digits}", "0".repeat(point.unsigned_abs() as usize))
        }
        _ => {
            let (first, rest) = digits.split_at(1);
            let rest = if rest.is_empty() { String::new() } else { format!(".{rest}") };
            format!("{sign}{first}{rest}e{:+}", point - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_have_the_form_of_ecmascript() {
        // From the samples of RFC 8785, appendix B.
        for (bits, text) in [
            (0x0000_0000_0000_0000, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x44b5_2d02_c7e1_4af5, "9999999999999997000000"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
        ] {
            let value = f64::from_bits(bits);
            // Integers beyond 2^53 are written in full; the RFC rounds them to the shortest digits.
            let expected =
                if value.abs() > EXACT && value.abs() < WIDEST { format!("{value:.0}") } else { text.into() };
            assert_eq!(float(value), Ok(expected), "{bits:x}");
        }
        for (value, text) in [(1e22, "1e+22"), (1e21, "1e+21"), (1e20, "100000000000000000000"), (12.5, "12.5")] {
            assert_eq!(ecmascript(value), text);
        }
        for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(matches!(float(wrong), Err(FingerprintError::NotFinite(_))), "{wrong}");
        }
    }
}
