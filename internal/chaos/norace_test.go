//go:build unix && !race

package chaos

// raceDetector is whether the programs are built with the race detector: as the tests are.
const raceDetector = false
