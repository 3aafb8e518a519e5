// Package archtest holds the walls between the packages of Pollux: its tests parse all sources of the module and fail where one
// of them imports or calls what it must not. The walls, each with its reason, are the table in rules_test.go.
//
// It reads the sources itself: a test that asked go list would be cached by go test, which does not see that command's inputs,
// and would pass on sources that have changed.
package archtest
