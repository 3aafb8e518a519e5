package broker

import (
	"encoding/json"

	"pollux/streams"
)

// The subjects of the JetStream API that we use. What asks and what is permitted both have them from here.
const (
	apiPrefix = "$JS.API."
	// userInfo is where a user asks what it may do.
	userInfo = "$SYS.REQ.USER.INFO"
)

// accountInfo is where the limits of the account are asked for.
const accountInfo = apiPrefix + "INFO"

func streamInfo(stream string) string   { return apiPrefix + "STREAM.INFO." + stream }
func streamCreate(stream string) string { return apiPrefix + "STREAM.CREATE." + stream }
func streamUpdate(stream string) string { return apiPrefix + "STREAM.UPDATE." + stream }
func streamPurge(stream string) string  { return apiPrefix + "STREAM.PURGE." + stream }
func messageGet(stream string) string   { return apiPrefix + "STREAM.MSG.GET." + stream }
func directGet(stream string) string    { return apiPrefix + "DIRECT.GET." + stream }

func consumerList(stream string) string { return apiPrefix + "CONSUMER.LIST." + stream }
func consumerInfo(stream, name string) string {
	return apiPrefix + "CONSUMER.INFO." + stream + "." + name
}

// consumerCreate is where a consumer with a name and one filter is made or changed.
func consumerCreate(stream, name, filter string) string {
	return apiPrefix + "CONSUMER.CREATE." + stream + "." + name + "." + filter
}

// tailCreate is where a consumer without a name is made.
func tailCreate(stream string) string { return apiPrefix + "CONSUMER.CREATE." + stream }

// nextPrefix begins the subjects where messages are asked for, the only requests that have more than one answer.
const nextPrefix = apiPrefix + "CONSUMER.MSG.NEXT."

func nextSubject(stream, name string) string { return nextPrefix + stream + "." + name }

// ackSubjects are where deliveries of a consumer are answered: servers have two forms, of which the second names their domain and account.
func ackSubjects(stream, name string) []string {
	return []string{"$JS.ACK." + stream + "." + name + ".>", "$JS.ACK.*.*." + stream + "." + name + ".>"}
}

// lastGet is where a message of a stream is asked for by its sequence: at any replica where the stream allows that.
func lastGet(d streams.Definition) string {
	var allowed struct {
		Direct bool `json:"allow_direct"`
	}
	if json.Unmarshal(d.JSON, &allowed) == nil && allowed.Direct {
		return directGet(d.Name)
	}
	return messageGet(d.Name)
}
