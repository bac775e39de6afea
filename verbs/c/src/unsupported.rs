//! Functions that exist so that programs can be loaded, and always fail with `EOPNOTSUPP`.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use crate::errno::{self, EOPNOTSUPP};

/// Defines functions that fail for any arguments.
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

// Not supported: device memory, memory of other devices, objects of another process, DMA handles, completion counters.
refuse! { *mut c_void, null_mut();
    ibv_alloc_dmah ibv_create_comp_cntr ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd ibv_reg_dmabuf_mr
}

// Only for drivers of hardware: structures of the kernel, and address resolution.
refuse! { c_int, EOPNOTSUPP.0;
    ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern
    ibv_resolve_eth_l2_from_gid ibv_unimport_dm ibv_unimport_mr ibv_unimport_pd
    ibv_dealloc_dmah ibv_destroy_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr
    ibv_read_comp_cntr ibv_read_err_comp_cntr ibv_qp_attach_comp_cntr _ibv_query_comp_cntr_caps
}

refuse! { c_int, -1; ibv_dm_export_dmabuf_fd }
