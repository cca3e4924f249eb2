// The PEM files of a node, looked at before they are used: a node that its peers would refuse
// says why when it starts, not in each handshake.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "transport/grpc_transport.h"

namespace unreft::tls_files {

// PermissionDenied for a key that others can read. InvalidArgument, naming the file: one that can
// not be read, a key of another certificate, a certificate that the authorities of ca_file have not
// signed or that is not valid now, or one that is not for this job.
absl::Status Check(const std::string& job, const GrpcTlsOptions& tls);

}  // namespace unreft::tls_files
