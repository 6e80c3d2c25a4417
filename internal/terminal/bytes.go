package terminal

import "strconv"

// Bytes writes a number of bytes for people: 512 B, 1.5 KiB, 20 MiB.
func Bytes(n int64) string {
	const unit, units = 1024, "KMGTPE"
	if n < unit {
		return strconv.FormatInt(n, 10) + " B"
	}
	value, i := float64(n)/unit, 0
	for ; value >= unit-0.5 && i < len(units)-1; i++ { // 1023.6 KiB would be printed as 1024 KiB
		value /= unit
	}
	digits := 0
	if value < 9.95 {
		digits = 1
	}
	return strconv.FormatFloat(value, 'f', digits, 64) + " " + units[i:i+1] + "iB"
}
