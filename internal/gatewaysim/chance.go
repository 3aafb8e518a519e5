package gatewaysim

// dice is a stream of chances that depends on nothing but what it was made from. It is splitmix64 (Steele, Lea, Flood: "Fast
// Splittable Pseudorandom Number Generators", 2014): one addition and a mix, which is cheap enough for every call.
type dice uint64

const golden = 0x9e3779b97f4a7c15 // 2⁶⁴ divided by the golden ratio: the step of splitmix64

// diceFor returns the stream of one payment's n-th call; n = 0 is the stream that the payment itself was made from.
func diceFor(seed, reference uint64, n uint32) dice {
	return dice(mix(mix(seed+golden)^reference) + mix(uint64(n)+1))
}

// next returns the next 64 bits.
func (d *dice) next() uint64 {
	*d += golden
	return mix(uint64(*d))
}

// chance returns the next number, uniform in [0, 1).
func (d *dice) chance() float64 { return float64(d.next()>>11) / (1 << 53) }

// between returns the next number, uniform in [low, high]; low when high is not above it.
func (d *dice) between(low, high int64) int64 {
	if high <= low {
		d.next()
		return low
	}
	return low + int64(d.next()%uint64(high-low+1))
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hash is FNV-1a, written out because it has to be the same in every process, which hash/maphash is not, without allocating.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
