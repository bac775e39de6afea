//! Calls that exist so that programs load, and refuse: `EOPNOTSUPP`.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use crate::errno::{self, EOPNOTSUPP};

/// Functions that refuse, whatever they are given.
macro_rules! refuse {
    ($result:ty, $value:expr; $($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> $result {
                errno::set(EOPNOTSUPP);
                $value
            }
        )*
    };
}

refuse! { *mut c_void, null_mut();
    ibv_alloc_pd
    ibv_create_ah
    ibv_create_ah_from_wc
    ibv_create_comp_channel
    ibv_create_cq
    ibv_create_qp
    ibv_create_srq
    ibv_import_device
    ibv_import_dm
    ibv_import_mr
    ibv_import_pd
    ibv_qp_to_qp_ex
    ibv_reg_dmabuf_mr
    ibv_reg_mr
    ibv_reg_mr_iova
    ibv_reg_mr_iova2
}

refuse! { c_int, EOPNOTSUPP.0;
    ibv_ack_async_event
    ibv_ack_cq_events
    ibv_attach_mcast
    ibv_copy_ah_attr_from_kern
    ibv_copy_path_rec_from_kern
    ibv_copy_path_rec_to_kern
    ibv_copy_qp_attr_from_kern
    ibv_dealloc_pd
    ibv_dereg_mr
    ibv_destroy_ah
    ibv_destroy_comp_channel
    ibv_destroy_cq
    ibv_destroy_qp
    ibv_destroy_srq
    ibv_detach_mcast
    ibv_dofork_range
    ibv_dontfork_range
    ibv_fork_init
    ibv_get_async_event
    ibv_get_cq_event
    ibv_init_ah_from_wc
    ibv_is_fork_initialized
    ibv_modify_qp
    ibv_modify_srq
    ibv_query_ece
    ibv_query_qp
    ibv_query_qp_data_in_order
    ibv_query_srq
    ibv_rereg_mr
    ibv_resize_cq
    ibv_resolve_eth_l2_from_gid
    ibv_set_ece
    ibv_unimport_dm
    ibv_unimport_mr
    ibv_unimport_pd
}
