// Starting, finding and stopping the embedded meta store of a job whose nodes run on this machine.
// `place` is that of the whole job. Blocking, stateless.
//
//   RUN_DIR/meta/address           where it serves, while it does
//   RUN_DIR/meta/meta.sock         where it serves, unless by TCP
//   RUN_DIR/meta/meta.lock         held by it, carries its pid
//   RUN_DIR/meta/supervisor.lock   held by its supervisor
//   RUN_DIR/meta.log               what both say
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "tools/cli/daemon_control.h"
#include "tools/cli/place.h"
#include "tools/cli/server_process.h"

namespace unreft::cli {

std::string MetaDirectory(const Place& place);
std::string MetaLog(const Place& place);

// Removes what the store has written, and its directory, if nothing else is in it.
absl::Status RemoveMetaFiles(const Place& place);

// "unix://" and the path of its socket: etcdctl takes it, too.
std::string MetaSocketAddress(const Place& place);

// A port of 127.0.0.1 that is free now and that no connection is given by the kernel, so that a
// store that comes back finds it free.
absl::StatusOr<std::string> ChooseMetaAddress();

// The store's command line.
std::vector<std::string> MetaArgv(const Place& place, const std::string& address,
                                  const StartRequest& request);

// Starts it, under a supervisor if asked, and waits until it serves. True if it was up already.
absl::StatusOr<bool> StartMeta(const Place& place, const std::string& address,
                               const StartRequest& request);

FoundProcess FindMeta(const Place& place);
FoundProcess FindMetaSupervisor(const Place& place);

// Holds the supervisor's lock and keeps the store running, in the foreground.
absl::Status SuperviseMeta(const Place& place, const std::string& address,
                           const StartRequest& request);

}  // namespace unreft::cli
