// gRPC's callback threads, which all clients and servers of a process share.
#pragma once

namespace unreft {

// Keeps them for the life of the process. gRPC 1.51 ends them with the last client or server that
// used them, and then now and then aborts in one of them: a process that leaves in good order would
// seem to crash. Called by whoever makes a client or server; idempotent, thread-safe.
void KeepGrpcThreads();

}  // namespace unreft
