// The PEM files of a node, looked at before they are used: a node that its peers would refuse
// says why when it starts, not in each handshake.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "transport/grpc_transport.h"

namespace unreft::tls_files {

// InvalidArgument, naming the file: one that cannot be read, a key of another certificate, a
// certificate that the authorities of ca_file did not sign or that is not valid now, or one that is
// not for this job.
absl::Status Check(const std::string& job, const GrpcTlsOptions& tls);

}  // namespace unreft::tls_files
